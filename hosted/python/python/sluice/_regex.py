"""Converts a regular expression to a grammar in llama.cpp's notation (GBNF) for texts that match it as a whole."""

from __future__ import annotations

from string import hexdigits

CLASSES = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": " \\t\\n\\r",
}
"""ASCII classes, as in Python with `re.ASCII`."""

CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "0": 0}
BOUND_MAX = 1000


def grammar(pattern: str) -> str:
    r"""The grammar of texts that match `pattern` as a whole.

    Supported: literals, escapes, `.`, classes (`[^a-z]`, `\d`, `\w`, `\s`), groups, `|`, and `*`, `+`, `?`, `{m,n}`,
    also lazy, which makes no difference here. `^` at the beginning and `$` at the end have no effect.

    Raises:
        ValueError: The pattern is invalid, or uses backreferences, lookaround, `\b` or flags, which are not supported.
    """
    reader = _Reader(pattern)
    reader.skip("^")
    rule = reader.choices()
    if reader.at < len(pattern):
        raise reader.wrong("an unmatched )")
    return "root ::= " + rule


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def wrong(self, what: str) -> ValueError:
        return ValueError(f"regex: {what} at {self.at} of {self.pattern!r}")

    @property
    def next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        char = self.next
        if not char:
            raise self.wrong("something is missing")
        self.at += 1
        return char

    def skip(self, text: str) -> bool:
        if self.pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def choices(self) -> str:
        found = [self.sequence()]
        while self.skip("|"):
            found.append(self.sequence())
        return " | ".join(found)

    def sequence(self) -> str:
        parts = []
        while self.next and self.next not in "|)":
            if self.pattern[self.at :] == "$":
                self.at += 1
                break
            parts.append(self.item() + self.times())
        return " ".join(parts) or '""'

    def item(self) -> str:
        char = self.take()
        if char == "(":
            return self.group()
        if char == "[":
            return self.char_class()
        if char == ".":
            return "[^\\n]"
        if char == "\\":
            return f"[{self.escape(in_class=False)}]"
        if char in "*+?{^$":
            self.at -= 1
            raise self.wrong(f"an unexpected {char}")
        return f"[{_shown(ord(char))}]"

    def group(self) -> str:
        if self.skip("?"):
            if self.skip("P<"):
                if ">" not in self.pattern[self.at :]:
                    raise self.wrong("a name without >")
                self.at = self.pattern.index(">", self.at) + 1
            elif not self.skip(":"):
                raise self.wrong("(?…, which is not supported,")
        inner = self.choices()
        if not self.skip(")"):
            raise self.wrong("a ( without )")
        return f"({inner})"

    def times(self) -> str:
        found = self.quantifier()
        if found and not self.skip("?") and self.next == "+":
            raise self.wrong("a possessive quantifier, which is not supported,")
        return found

    def quantifier(self) -> str:
        if self.next and self.next in "*+?":
            return self.take()
        if not self.skip("{"):
            return ""
        if "}" not in self.pattern[self.at :]:
            raise self.wrong("a { without }")
        end = self.pattern.index("}", self.at)
        low, comma, high = self.pattern[self.at : end].partition(",")
        if any(part and not (part.isascii() and part.isdigit()) for part in (low, high)) or not (low or high):
            raise self.wrong("no {m}, {m,} or {m,n}")
        least, most = int(low or 0), int(high or low or 0)
        if max(least, most) > BOUND_MAX or (high and most < least):
            raise self.wrong(f"no bounds between 0 and {BOUND_MAX}")
        self.at = end + 1
        if not comma:
            return f"{{{least}}}"
        return f"{{{least},{most}}}" if high else f"{{{least},}}"

    def char_class(self) -> str:
        negated = "^" if self.skip("^") else ""
        parts: list[str] = []
        while self.next != "]" or not parts:
            parts.append(self.range())
        self.at += 1
        return f"[{negated}{''.join(parts)}]"

    def range(self) -> str:
        low = self.one()
        if not (self.next == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", "")):
            return low if isinstance(low, str) else _shown(low)
        self.at += 1
        high = self.one()
        if isinstance(low, str) or isinstance(high, str) or high < low:
            raise self.wrong("a reversed range")
        return f"{_shown(low)}-{_shown(high)}"

    def one(self) -> int | str:
        """A character of a class, or the expansion of a shorthand."""
        char = self.take()
        if char != "\\":
            return ord(char)
        before = self.at
        text = self.escape(in_class=True)
        if self.pattern[before] in CLASSES:
            return text
        return self.code

    def escape(self, *, in_class: bool) -> str:
        """The class of an escape; `code` is its character if it stands for one."""
        char = self.take()
        if char in CLASSES:
            return CLASSES[char]
        if char.lower() in CLASSES and not in_class:
            return "^" + CLASSES[char.lower()]
        if char in CONTROLS:
            self.code = CONTROLS[char]
        elif char in ("x", "u"):
            n = 2 if char == "x" else 4
            digits = self.pattern[self.at : self.at + n]
            if len(digits) < n or not all(digit in hexdigits for digit in digits):
                raise self.wrong("an escape without its digits")
            self.code = int(digits, 16)
            self.at += len(digits)
        elif char.isalnum():
            raise self.wrong(f"\\{char}, which is not supported,")
        else:
            self.code = ord(char)
        return _shown(self.code)

    code: int = 0


def _shown(code: int) -> str:
    """A character in a class of GBNF."""
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    if code < 0x100:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
