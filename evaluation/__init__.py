"""Metrics with and without labels, baselines, the benchmark with its tables and report, encoders on the customary tasks.

>>> from hardkuma.evaluation.metrics import Ranking
>>> Ranking(labels=[[1, 0]], scores=[[0.9, 0.1]]).curve().average_precision()
1.0
"""
