"""What rows say: beside their peers, beside guidelines, and why."""
