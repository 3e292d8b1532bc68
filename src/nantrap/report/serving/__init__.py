"""The live page: a read-only web server over a folder of runs. Needs `nantrap[serve]`.

app        the addresses and their answers, pages and events
access     who may ask: host names, other sites, a token
content    what an answer holds
index      which runs and logs there are, their steps and their curves
summary    what the list shows of a run, and how it is doing, in one word
foreign    logs that nantrap did not write
cache      curves and counts in SQLite, which may be deleted at any time
"""
