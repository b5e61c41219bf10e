#!/usr/bin/env python3
"""Makes tests/fixtures/json_schema.json: schemas over the documented keywords, documents, verdicts.

The verdicts are those of the Python package jsonschema, draft 2020-12, formats being annotations. Each
schema is made by chance from a fixed seed: keywords, their combinations, references. `closed` says
that every object of a schema declares its other properties, so that our closing by default
changes nothing and the verdicts must be equal; otherwise what we accept must be valid.

`long_numbers` are schemas of whole numbers that doubles do not hold, in and beyond 64 bits, as text, and numbers near
their bounds: Python's integers are exact.

    pip install jsonschema
    python3 tests/tools/json_schema_goldens.py > tests/fixtures/json_schema.json
"""

import json
import random
import sys

import jsonschema

KEYS = ["a", "b", "c", "x1"]
SCHEMAS, DOCUMENTS, LONG_NUMBERS = 400, 6, 20


class Maker:
    def __init__(self, seed, closed):
        self.random, self.closed, self.defs = random.Random(seed), closed, {}

    def chance(self, p):
        return self.random.random() < p

    def scalar(self):
        return self.random.choice([None, True, False, 0, 1, 2, -3, 1.5, 7, "a", "b", "xy", "", "a1"])

    def number(self):
        made = {"type": self.random.choice(["integer", "number"])}
        if self.chance(0.6):
            made[self.random.choice(["minimum", "exclusiveMinimum"])] = self.random.choice([-5, 0, 1, 2, 0.5])
        if self.chance(0.6):
            made[self.random.choice(["maximum", "exclusiveMaximum"])] = self.random.choice([3, 7, 10, 2.5])
        if self.chance(0.2):
            made["multipleOf"] = self.random.choice([2, 3, 0.5])
        return made

    def string(self):
        made = {"type": "string"}
        if self.chance(0.4):
            made["minLength"] = self.random.randint(0, 2)
        if self.chance(0.4):
            made["maxLength"] = self.random.randint(1, 4)
        if self.chance(0.3):
            made["pattern"] = self.random.choice(["^[ab]+$", "a", "^x", "[0-9]$", "^a|b$", "^.{1,3}$"])
        if self.chance(0.1):
            made["format"] = self.random.choice(["password", "byte", "regex", "json-pointer"])
        return made

    def array(self, depth):
        made = {"type": "array"}
        if self.chance(0.7):
            made["items"] = self.schema(depth - 1)
        if self.chance(0.3):
            made["prefixItems"] = [self.schema(depth - 1) for _ in range(self.random.randint(1, 2))]
        if self.chance(0.4):
            made["minItems"] = self.random.randint(0, 2)
        if self.chance(0.4):
            made["maxItems"] = self.random.randint(1, 3)
        return made

    def object(self, depth):
        made = {"type": "object"}
        if self.chance(0.85):
            made["properties"] = {key: self.schema(depth - 1) for key in self.random.sample(KEYS, self.random.randint(1, 3))}
        if self.chance(0.5):
            made["required"] = self.random.sample(KEYS, self.random.randint(1, 2))
        if self.chance(0.2):
            made["patternProperties"] = {self.random.choice(["^x", "^[ab]$", "1$"]): self.schema(depth - 1)}
        if self.closed or self.chance(0.3):
            made["additionalProperties"] = self.random.choice([False, True, {"type": "integer"}])
        if self.chance(0.12):
            made["minProperties"] = self.random.randint(1, 2)
        if self.chance(0.12):
            made["maxProperties"] = self.random.randint(1, 3)
        if not self.closed and self.chance(0.1):
            made["unevaluatedProperties"] = False
        return made

    def schema(self, depth):
        kinds = ["number", "string", "scalar", "type"]
        if depth > 0:
            kinds += ["object", "object", "object", "array", "allOf", "anyOf", "oneOf", "ref", "siblings"]
        kind = self.random.choice(kinds)
        if kind == "number":
            return self.number()
        if kind == "string":
            return self.string()
        if kind == "scalar":
            if self.chance(0.4):
                return {"const": self.random.choice([self.scalar(), [1, "a"], {"a": 1}, {"b": [True]}])}
            return {"enum": [self.scalar() for _ in range(self.random.randint(1, 4))]}
        if kind == "type":
            types = ["null", "boolean", "integer", "number", "string"]
            return self.random.choice([{"type": self.random.sample(types, 2)}, {"type": self.random.choice(types)}, True, {}])
        if kind == "array":
            return self.array(depth)
        if kind == "object":
            return self.object(depth)
        if kind == "allOf":
            return {"allOf": [self.schema(depth - 1) for _ in range(self.random.randint(1, 2))]}
        if kind in ("anyOf", "oneOf"):
            return {kind: [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]}
        if kind == "ref":
            return {"$ref": self.reference(depth)}
        made = self.random.choice([self.object, self.object, lambda _: self.string()])(depth)
        other = self.schema(depth - 1)
        key = self.random.choice(["allOf", "anyOf", "oneOf", "$ref"])
        made[key] = self.reference(depth) if key == "$ref" else [other] + [self.object(depth - 1)] * self.random.randint(0, 1)
        return made

    def reference(self, depth):
        name = self.random.choice(["d1", "d/2", "d 3", "d4"])
        if name not in self.defs:
            self.defs[name] = None
            made = self.schema(depth - 1)
            if name == "d4" and isinstance(made, dict):
                made["$anchor"] = "four"
            self.defs[name] = made
        if name == "d4" and isinstance(self.defs[name], dict):
            return "#four"
        return "#/$defs/" + {"d/2": "d~12", "d 3": "d%203"}.get(name, name)

    def whole(self):
        made = self.random.choice([self.object, self.object, self.schema])(3)
        if self.defs and isinstance(made, dict):
            made["$defs"] = {name: schema for name, schema in self.defs.items() if schema is not None}
        return made

    def document(self, schema, root, depth=4):
        """Something that is likely to be valid."""
        if depth == 0 or not isinstance(schema, dict):
            return self.scalar()
        if "$ref" in schema:
            name = schema["$ref"].split("/")[-1].replace("~1", "/").replace("%20", " ").replace("#four", "d4")
            one = self.document(root.get("$defs", {}).get(name, {}), root, depth - 1)
            two = self.document({k: v for k, v in schema.items() if k != "$ref"}, root, depth - 1) if len(schema) > 1 else one
            return {**one, **two} if isinstance(one, dict) and isinstance(two, dict) else self.random.choice([one, two])
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        for key in ("allOf", "anyOf", "oneOf"):
            if key in schema:
                some = schema[key] if key == "allOf" else [self.random.choice(schema[key])]
                rest = {k: v for k, v in schema.items() if k != key and k != "$defs"}
                made = [self.document(part, root, depth - 1) for part in some] + ([self.document(rest, root, depth - 1)] if rest else [])
                if all(isinstance(part, dict) for part in made):
                    return {k: v for part in made for k, v in part.items()}
                return self.random.choice(made)
        kind = schema.get("type", self.random.choice(["integer", "string", "object", "null"]))
        kind = self.random.choice(kind) if isinstance(kind, list) else kind
        if kind == "object" or "properties" in schema:
            made = {}
            for key in KEYS:
                part = schema.get("properties", {}).get(key)
                if key in schema.get("required", []) or (part is not None and self.chance(0.6)) or self.chance(0.1):
                    made[key] = self.document({} if part is None else part, root, depth - 1)
            return made
        if kind == "array":
            items = [self.document(part, root, depth - 1) for part in schema.get("prefixItems", [])]
            n = self.random.randint(0, 3)
            return (items + [self.document(schema.get("items", {}), root, depth - 1) for _ in range(n)])[: max(n, schema.get("minItems", 0))]
        if kind in ("integer", "number"):
            return self.random.choice([0, 1, 2, 3, 4, 6, 7, -1, 10] + ([0.5, 2.5] if kind == "number" else []))
        if kind == "string":
            return self.random.choice(["a", "b", "ab", "x", "xa1", "abcd", "", "1", "aab", "é"])
        return {"null": None, "boolean": self.chance(0.5)}.get(kind, 0)


def long_numbers(seed, bases):
    rng, cases = random.Random(seed), []
    while len(cases) < LONG_NUMBERS:
        base = rng.choice(bases) * rng.choice([1, -1]) + rng.randint(-2, 2)
        other = base + rng.choice([0, 1, 3, 7, 90, 10**15, 10**22])
        kind = rng.choice(["least", "most", "both", "both", "const", "enum"])
        schema = {"const": base} if kind == "const" else {"enum": [base, other, 5]} if kind == "enum" else {"type": "integer"}
        if kind in ("least", "both"):
            schema[rng.choice(["minimum", "exclusiveMinimum"])] = base
        if kind in ("most", "both"):
            schema[rng.choice(["maximum", "exclusiveMaximum"])] = other
        if len(schema) > 1 and rng.random() < 0.3:
            schema["multipleOf"] = rng.choice([2, 3, 7, 1000])
        validator = jsonschema.Draft202012Validator(schema)
        beside = {x + d for x in (base, other) for d in (-2, -1, 0, 1, 2)} | {0, -base, base * 10, base // 10}
        verdicts = [(validator.is_valid(x), str(x)) for x in sorted(beside)]
        if any(is_valid for is_valid, _ in verdicts):
            valid = [text for is_valid, text in verdicts if is_valid]
            wrong = [text for is_valid, text in verdicts if not is_valid]
            cases.append({"schema": json.dumps(schema), "valid": valid, "invalid": wrong})
    return cases


def main():
    cases, seed = [], 0
    while len(cases) < SCHEMAS:
        seed += 1
        maker = Maker(seed, closed=seed % 2 == 0)
        schema = maker.whole()
        text = json.dumps(schema, ensure_ascii=False)
        if "null, \"$ref\"" in text or len(text) > 900:
            continue
        try:
            validator = jsonschema.Draft202012Validator(schema)
            documents = {json.dumps(maker.document(schema, schema), ensure_ascii=False, separators=(",", ":")) for _ in range(60)}
            verdicts = sorted((validator.is_valid(json.loads(text)), text) for text in documents if len(text) < 60)
        except (RecursionError, jsonschema.exceptions._WrappedReferencingError, TypeError):
            continue
        valid = [text for is_valid, text in verdicts if is_valid]
        wrong = [text for is_valid, text in verdicts if not is_valid]
        half = DOCUMENTS // 2
        wrong = wrong[: DOCUMENTS - min(half, len(valid))]
        valid = valid[: DOCUMENTS - len(wrong)]
        if len(valid) + len(wrong) < 3:
            continue
        cases.append({"schema": schema, "closed": maker.closed, "valid": valid, "invalid": wrong})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    long = ",\n".join(json.dumps(case) for case in long_numbers(1, [2**53, 2**63, 2**64, 10**20, 10**30, 10**40]) + long_numbers(2, [2**53, 10**16, 2**62]))
    sys.stdout.write('{"jsonschema": "%s", "cases": [\n%s\n],\n"long_numbers": [\n%s\n]}\n' % (jsonschema.__version__, lines, long))


main()
