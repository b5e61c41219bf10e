"""Tables of numbers as text, as sluice_kernels::literals reads them."""

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def text(rows):
    """The digits of rows of equally many numbers, in lines of 100."""
    digits, above = "", [0] * len(rows[0])
    for row in rows:
        for number, last in zip(row, above):
            step = number - last
            step = step << 1 if step >= 0 else -step * 2 - 1
            while step >= 32:
                digits += DIGITS[step & 31 | 32]
                step >>= 5
            digits += DIGITS[step]
        above = row
    return "\n".join(digits[at : at + 100] for at in range(0, len(digits), 100))


def static(doc, name, rows):
    """A table of Rust."""
    kind = f"[[u32; {len(rows[0])}]; {len(rows)}]"
    return f'''
/// {doc}
pub(super) static {name}: {kind} = table(
    "\\
{text(rows)}",
);'''
