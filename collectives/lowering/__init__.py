"""Lower a program to ordered messages for one buffer, or to phases in ranks' memory."""
