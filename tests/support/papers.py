"""Files of many kinds, made on the spot."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence


def pdf(*pages: str) -> bytes:
    """A PDF with one line of text a page, written out by hand."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out, offsets = "%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    end = f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    return f"{out}xref\n0 {size}\n0000000000 65535 f \n{table}{end}".encode("latin-1")


def docx() -> bytes:
    from docx import Document

    document = Document()
    document.add_heading("Minutes", level=1)
    document.add_paragraph("The council met on Tuesday.")
    table = document.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "Vote", "7, to 2"
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def xlsx(rows: Sequence[Sequence[object]] = (("name", "height"), ("Vell", 41), (None, None))) -> bytes:
    from openpyxl import Workbook

    book = Workbook()
    assert book.active is not None
    book.active.title = "Towers"
    for row in rows:
        book.active.append(list(row))
    book.create_sheet("Nothing")
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def pptx() -> bytes:
    from pptx import Presentation

    show = Presentation()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text = "Harbour"
    slide.placeholders[1].text = "Depth nine metres"
    slide.notes_slide.notes_text_frame.text = "mention the tide"
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def archive(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name.replace("__", "/").replace("_", "."), content)
    return out.getvalue()


PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\nIDATx\x9cc\x00\x01\x00\x00\x05\x00\x01\r\n-\xb4\x00\x00\x00\x00IEND\xaeB`\x82"
)
