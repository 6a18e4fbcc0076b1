"""Inputs of workloads, made from a seed: the same bytes on every machine, nothing downloaded.

To add an input: one function ``(path, *, seed, ...)`` with a docstring and one line in
:data:`INPUTS`. Its keyword arguments are the keys that a workload file may give.
"""

from __future__ import annotations

import functools
import itertools
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy
    import numpy.typing as npt


def words(path: Path, *, seed: int = 1, bytes: int = 3_000_000, line: int = 12) -> None:  # noqa: A002
    """Write text whose words have the skewed frequencies of a language, ``line`` words per line."""
    chance = random.Random(seed)
    # More than enough: a word and its space have 6.6 bytes on average.
    chosen = _words(chance, bytes // 4)
    lines = (" ".join(chosen[at : at + line]) for at in range(0, len(chosen), line))
    path.write_bytes("\n".join(lines).encode()[: bytes - 1] + b"\n")


def photo(path: Path, *, seed: int = 1, width: int = 2000, height: int = 1500) -> None:
    """Write a colour image (PPM): patches of halving size, fainter each time, as in photographs."""
    image = _texture(seed, height, width, 3)
    path.write_bytes(f"P6 {width} {height} 255\n".encode() + image.tobytes())


def video(
    path: Path, *, seed: int = 1, width: int = 640, height: int = 360, frames: int = 60
) -> None:
    """Write a clip (YUV4MPEG2, 4:2:0, 25 a second): a camera that pans while a square passes."""
    import numpy

    chance = numpy.random.default_rng(seed)
    scene = _texture(seed, height + frames, width + 2 * frames, 1)[..., 0]
    side = height // 4
    square = _texture(seed + 1, side, side, 1)[..., 0]
    with path.open("wb") as out:
        out.write(f"YUV4MPEG2 W{width} H{height} F25:1 Ip A1:1 C420\n".encode())
        for frame in range(frames):
            view = scene[frame : frame + height, 2 * frame : 2 * frame + width].copy()
            across = frame * (width - side) // max(frames - 1, 1)
            view[height // 3 : height // 3 + side, across : across + side] = square
            grain = chance.integers(-3, 4, view.shape)
            luma = numpy.clip(view + grain, 16, 235).astype(numpy.uint8)
            blue = 255 - luma[::2, ::2] // 2
            out.write(b"FRAME\n" + luma.tobytes() + blue.tobytes() + luma[1::2, 1::2].tobytes())


def postscript(path: Path, *, seed: int = 1, pages: int = 8) -> None:
    """Write a document (PostScript): a page has 60 lines of text, curves and shaded shapes."""
    chance = random.Random(seed)
    out = ["%!PS-Adobe-3.0", f"%%Pages: {pages}"]
    for page in range(1, pages + 1):
        out += [f"%%Page: {page} {page}", "/Times-Roman findfont 10 scalefont setfont"]
        for line in range(60):
            text = " ".join(_words(chance, 14))
            out.append(f"40 {770 - 12 * line} moveto ({text}) show")
        for _ in range(120):
            x, y, *rest = (str(chance.randint(0, 800)) for _ in range(8))
            out.append(f"newpath {x} {y} moveto {' '.join(rest)} curveto")
            grey = chance.randint(2, 9) / 10
            out.append(f"{grey} setgray {chance.choice(('stroke', 'closepath fill'))}")
        out.append("0 setgray showpage")
    path.write_text("\n".join([*out, "%%EOF"]) + "\n", encoding="ascii")


def pdf(path: Path, *, seed: int = 1, pages: int = 10, pixels: int = 600) -> None:
    """Write a document (PDF 1.4): a page has text, curves and a picture of ``pixels`` squared."""
    chance = random.Random(seed)
    # Catalogue, page tree and font, written at the end.
    objects: list[bytes] = [b""] * 3

    def add(head: str, stream: bytes) -> int:
        packed = zlib.compress(stream, 6)
        head = f"<< {head} /Length {len(packed)} /Filter /FlateDecode >>"
        objects.append(head.encode() + b"\nstream\n" + packed + b"\nendstream")
        return len(objects)

    kids = []
    for page in range(pages):
        image = _texture(seed * 1000 + page, pixels, pixels, 3).tobytes()
        shape = f"/Width {pixels} /Height {pixels} /ColorSpace /DeviceRGB /BitsPerComponent 8"
        picture = add(f"/Type /XObject /Subtype /Image {shape}", image)
        drawn = ["q 250 0 0 250 300 60 cm /P Do Q", "BT /F 10 Tf 12 TL 40 780 Td"]
        drawn += [f"({' '.join(_words(chance, 14))}) Tj T*" for _ in range(38)]
        drawn.append("ET")
        for _ in range(150):
            points = [chance.randint(0, 300) for _ in range(8)]
            drawn.append("{} {} m {} {} {} {} {} {} c S".format(*points))
        content = add("", "\n".join(drawn).encode())
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R "
            b"/Resources << /Font << /F 3 0 R >> /XObject << /P %d 0 R >> >> >>"
            % (content, picture)
        )
        kids.append(f"{len(objects)} 0 R")
    objects[0] = b"<< /Type /Catalog /Pages 2 0 R >>"
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {pages} >>".encode()
    objects[2] = b"<< /Type /Font /Subtype /Type1 /BaseFont /Times-Roman >>"
    out, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    count, end = len(objects) + 1, len(out)
    out += f"xref\n0 {count}\n0000000000 65535 f \n{table}".encode()
    out += f"trailer << /Size {count} /Root 1 0 R >>\nstartxref\n{end}\n%%EOF\n".encode()
    path.write_bytes(out)


def spreadsheet(path: Path, *, seed: int = 1, rows: int = 4000) -> None:
    """Write a workbook (CSV with formulas): sales by row, running sums, shares, a sum by region."""
    chance = random.Random(seed)
    out = ["item,region,units,price,total,running,share,rank,text"]
    regions = ("north", "east", "south", "west")
    for row in range(2, rows + 2):
        item, region = f"item{chance.randint(1, 300)}", chance.choice(regions)
        units, price = chance.randint(1, 500), chance.randint(100, 99999) / 100
        running = f"=E{row}" if row == 2 else f"=F{row - 1}+E{row}"
        share = f'"=E{row}/SUM(E${max(2, row - 10)}:E${row})"'
        rank = f'"=IF(E{row}>AVERAGE(E${max(2, row - 10)}:E${row}),1,0)"'
        text = f'"=CONCATENATE(A{row},""-"",B{row},""-"",TEXT(C{row},""0""))"'
        cells = [item, region, units, price, f"=C{row}*D{row}", running, share, rank, text]
        out.append(",".join(map(str, cells)))
    for region in regions:
        sums = f'"=SUMIF(B$2:B${rows + 1},""{region}"",E$2:E${rows + 1})"'
        out.append(f"{region},,,,{sums}")
    path.write_text("\n".join(out) + "\n", encoding="ascii")


def sql_tables(path: Path, *, seed: int = 1, customers: int = 3000, orders: int = 20_000) -> None:
    """Write SQL that creates three tables with indices: customers, orders, lines of orders."""
    chance = random.Random(seed)
    out = [
        "PRAGMA journal_mode=OFF; BEGIN;",
        "CREATE TABLE customer(id INTEGER PRIMARY KEY, name TEXT, region INT, note TEXT);",
        "CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INT, day INT, state TEXT);",
        "CREATE TABLE line(orders INT, item INT, units INT, price REAL, note TEXT);",
    ]
    for key in range(1, customers + 1):
        name, note = " ".join(_words(chance, 2)), " ".join(_words(chance, 12))
        out.append(f"INSERT INTO customer VALUES({key},'{name}',{chance.randint(0, 24)},'{note}');")
    for key in range(1, orders + 1):
        # A few customers place most orders.
        customer = min(customers, int(chance.paretovariate(0.4)))
        day, state = chance.randint(0, 2400), chance.choice("fop")
        out.append(f"INSERT INTO orders VALUES({key},{customer},{day},'{state}');")
        for _ in range(chance.randint(1, 6)):
            item, units, price = chance.randint(1, 2000), chance.randint(1, 50), chance.random()
            note = " ".join(_words(chance, 4))
            out.append(f"INSERT INTO line VALUES({key},{item},{units},{price:.4f},'{note}');")
    out += [
        "COMMIT;",
        "CREATE INDEX by_customer ON orders(customer);",
        "CREATE INDEX by_orders ON line(orders);",
        "CREATE INDEX by_item ON line(item);",
        "ANALYZE;",
    ]
    path.write_text("\n".join(out) + "\n", encoding="ascii")


def sql_queries(path: Path, *, seed: int = 1, rounds: int = 6) -> None:
    """Write SQL queries on the tables of ``sql-tables``: joins, sums, searches, look-ups by key."""
    chance = random.Random(seed)
    out = ["PRAGMA cache_size=-4000;"]
    for _ in range(rounds):
        day = chance.randint(0, 2000)
        out += [
            "SELECT state, count(*), sum(units*price) FROM orders JOIN line ON line.orders="
            f"orders.id WHERE day BETWEEN {day} AND {day + 400} GROUP BY state;",
            "SELECT c.region, sum(l.units*l.price) AS worth FROM customer c JOIN orders o ON "
            "o.customer=c.id JOIN line l ON l.orders=o.id "
            f"WHERE o.day>{day} GROUP BY c.region ORDER BY worth DESC LIMIT 5;",
            f"SELECT count(*) FROM line WHERE note LIKE '%{_words(chance, 1)[0]}%';",
            "SELECT item, avg(price), max(units) FROM line GROUP BY item "
            "HAVING count(*)>20 ORDER BY 2 LIMIT 10;",
        ]
        for _ in range(40):
            key = min(2000, int(chance.paretovariate(0.4)))
            out.append(
                "SELECT c.name, o.day, l.units FROM customer c JOIN orders o ON o.customer=c.id "
                f"JOIN line l ON l.orders=o.id WHERE c.id={key} ORDER BY o.day LIMIT 5;"
            )
    path.write_text("\n".join(out) + "\n", encoding="ascii")


def redis_load(path: Path, *, seed: int = 1, keys: int = 20_000, commands: int = 60_000) -> None:
    """Write commands for ``redis-cli`` that store ``keys`` values, then use some of them often."""
    chance = random.Random(seed)
    text = " ".join(_words(chance, 3000))

    def value() -> str:
        at = chance.randrange(len(text) - 600)
        return text[at : at + chance.randint(20, 500)].strip() or "x"

    out = [f'SET key:{key} "{value()}"' for key in range(keys)]
    shapes: list[Callable[[int], str]] = [
        lambda key: f"GET key:{key}",
        lambda key: f"GET key:{key}",
        lambda key: f"GET key:{key}",
        lambda key: f'SET key:{key} "{value()}"',
        lambda key: f"HINCRBY user:{key % 500} seen:{key % 40} 1",
        lambda key: f"ZADD board {chance.randint(0, 10**6)} member:{key}",
        lambda key: f'LPUSH queue:{key % 50} "{value()[:60]}"',
        lambda key: f"LRANGE queue:{key % 50} 0 20",
        lambda key: f"ZRANGE board {key % 1000} {key % 1000 + 20}",
    ]
    for _ in range(commands):
        key = min(keys - 1, int(chance.paretovariate(0.4)))
        out.append(chance.choice(shapes)(key))
    path.write_text("\n".join(out) + "\n", encoding="ascii")


def edges(path: Path, *, seed: int = 1, vertices: int = 30_000, edges: int = 200_000) -> None:
    """Write a graph, ``from to`` a line: R-MAT, whose degrees are as skewed as a social network's.

    Chakrabarti, Zhan, Faloutsos, SDM 2004; a, b, c, d = 0.57, 0.19, 0.19, 0.05 (Graph 500).
    """
    import numpy

    chance = numpy.random.default_rng(seed)
    levels = max(1, (vertices - 1).bit_length())
    ends = numpy.zeros((2, edges), dtype=numpy.int64)
    # Each level adds a bit to both ends: quadrant a adds (0, 0), b (0, 1), c (1, 0), d (1, 1).
    for _ in range(levels):
        draw = chance.random(edges)
        ends = 2 * ends + numpy.array([draw >= 0.76, (draw >= 0.57) & (draw < 0.76)])
        ends[1] += draw >= 0.95
    # Shuffled, so that a vertex's number says nothing about its degree.
    order = chance.permutation(1 << levels) % vertices
    pairs = order[ends]
    path.write_text("\n".join(f"{a} {b}" for a, b in pairs.T.tolist()) + "\n", encoding="ascii")


#: The registry: the names that a workload file may use.
INPUTS: Final[dict[str, Callable[..., None]]] = {
    "words": words,
    "photo": photo,
    "video": video,
    "postscript": postscript,
    "pdf": pdf,
    "spreadsheet": spreadsheet,
    "sql-tables": sql_tables,
    "sql-queries": sql_queries,
    "redis-load": redis_load,
    "edges": edges,
}


def _words(chance: random.Random, count: int) -> Sequence[str]:
    """``count`` words of a made-up language: word number r is drawn with weight 1 / (r + 2)."""
    words, cumulative_weights = _language()
    return chance.choices(words, cum_weights=cumulative_weights, k=count)


@functools.cache
def _language() -> tuple[list[str], list[float]]:
    """The words, and their cumulative weights."""
    letters, draw = "etaoinshrdlucmfwypvbgkjqxz", random.Random(1)
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(8000)]
    return words, list(itertools.accumulate(1 / (rank + 2) for rank in range(len(words))))


def _texture(seed: int, height: int, width: int, colours: int) -> npt.NDArray[numpy.uint8]:
    """Noise in patches of halving size, (height, width, colours); each step is 0.6 as strong."""
    import numpy

    chance = numpy.random.default_rng(seed)
    total = numpy.zeros((height, width, colours))
    step, strength = 1 << (max(height, width).bit_length() - 1), 1.0
    while step >= 1:
        shape = (-(-height // step), -(-width // step), colours)
        part = chance.random(shape).repeat(step, 0).repeat(step, 1)[:height, :width]
        total += strength * part
        step, strength = step // 2, strength * 0.6
    low, high = total.min(), total.max()
    scaled = (total - low) / max(high - low, 1e-9) * 255
    pixels: npt.NDArray[numpy.uint8] = scaled.astype(numpy.uint8)
    return pixels
