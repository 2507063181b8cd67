"""Collectives made for a network: a graph of ranks, the least time on it, and a program that comes near."""
