"""Damage files at random, and check what readers say."""

import re

from dear_mpi.collectives.program.errors import ProgramError


def garbled(text, rng):
    """Change, double or lose characters or numbers."""
    raw = bytearray(text.encode())
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(raw) or 1)
        match rng.randrange(5):
            case 0:
                raw[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del raw[at : at + rng.randrange(1, 40)]
            case 2:
                raw[at:at] = raw[at : at + rng.randrange(1, 200)]
            case 3:
                raw[at:at] = rng.choice([b"9" * 30, b"-", b"<", b'"', b"\0", b"&lt;", b"<!DOCTYPE x>", b"[" * 2000])
            case _:
                numbers = list(re.finditer(rb"\d+", bytes(raw))) or [re.match(b"", raw)]
                found = rng.choice(numbers)
                number = rng.choice([0, -1, 3, 7, 99, 4097, 65536, 10**9, 10**40, "1e999", "nan", "null"])
                raw[found.start() : found.end()] = str(number).encode()
    return bytes(raw)


def assert_errors_name_the_file(read, texts, rng, rounds):
    """``read(name, raw)`` reads and proves a damaged text; a ValueError names its file."""
    for _ in range(rounds):
        name = rng.choice([*texts])
        said = ""
        try:
            read(name, garbled(texts[name], rng))
        except ProgramError:
            pass  # of the proof
        except ValueError as error:
            said = str(error)
        assert not said or name in said
