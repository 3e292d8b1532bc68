"""The live page: a read-only web server over a folder of runs. Needs `nantrap[serve]`.

finding    which runs and logs there are under a folder
journals   steps from anywhere in a journal of any size, without reading it whole
foreign    logs that nantrap did not write
state      how a run is doing, in one word
summary    what the list shows of a run
cache      curves and counts in SQLite, which may be deleted at any time
index      all of these together: the summaries, the steps and the curves of every run
guarding   access control: host names, other sites, a token
app        the pages and the events
"""
