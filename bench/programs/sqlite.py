"""sqlite.py ROWS: inserts into an in-memory database, and lookups that favour low keys."""

import random
import sqlite3
import sys

rows = int(sys.argv[1])
draw = random.Random(1)
database = sqlite3.connect(":memory:")
database.execute("create table t (id integer primary key, name text, body blob)")
filled = ((n, f"name {draw.getrandbits(40):x}", draw.randbytes(200) * 14) for n in range(rows))
database.executemany("insert into t values (?, ?, ?)", filled)
database.execute("create index names on t (name)")
total = 0
for _ in range(rows):
    key = int(rows * draw.random() ** 3)
    total += len(database.execute("select body from t where id = ?", (key,)).fetchone()[0])
total += database.execute("select count(*) from t where name > 'name 8'").fetchone()[0]
print(total)
