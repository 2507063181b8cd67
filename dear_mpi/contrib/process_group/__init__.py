"""Run unchanged DDP and FSDP2 over our collectives: a backend of ``torch.distributed``."""
