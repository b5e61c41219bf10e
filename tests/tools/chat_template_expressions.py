#!/usr/bin/env python3
"""Makes tests/fixtures/chat/expressions.json: what jinja2 makes of many small templates.

Every construct that a chat template can use, each with values of all kinds, in an environment set
up as huggingface/transformers does (src/transformers/utils/chat_template_utils.py). A template that
fails there has null for its result.

    pip install jinja2==3.1.6
    python3 tests/tools/chat_template_expressions.py > tests/fixtures/chat/expressions.json
"""

import copy
import json
import random
import sys

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

assert jinja2.__version__ == "3.1.6", jinja2.__version__

# The variables of every template.
CONTEXT = {
    "s": "Hello, wörld",
    "t": " \tA b\nc-d_e  f\n ",
    "m": "one\ntwo\n\nthree",
    "h": "<a href='x'>Tom & \"Bo\"</a>",
    "e": "",
    "n": None,
    "i": 42,
    "j": -7,
    "f": 2.5,
    "z": 0,
    "yes": True,
    "no": False,
    "l": [3, 1, 2],
    "w": ["b", "A", "c", "a", "B"],
    "el": [],
    "d": {"b": 1, "a": [1, "x"], "C": None},
    "ed": {},
    "o": [{"k": "x", "v": 1}, {"k": "y", "v": 2}, {"k": "x", "v": 3}],
    "p": [{"a": {"b": 1}}, {"a": {"b": None}}, {"a": {}}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
    ],
    "tools": None,
    "documents": None,
    "add_generation_prompt": True,
}
NAMES = ["s", "t", "h", "e", "n", "i", "j", "f", "z", "yes", "no", "l", "w", "el", "d", "ed", "o", "nope"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping",
         "sequence", "iterable", "callable", "odd", "even", "lower", "upper", "escaped"]
FILTERS = """length count first last list string upper lower title capitalize trim abs int float round sum min max sort unique
reverse join items dictsort escape e forceescape safe striptags urlencode wordcount tojson pprint indent default('D')
default('D',true) default(boolean=true,default_value='B') d('x') filesizeformat center(20) truncate(8) wordwrap(5) batch(2)|list
slice(2)|list map('string')|list select|list reject|list xmlattr string|length format replace('l','L') list|length
first|string trim('H') random|string|length""".split()
EXPRESSIONS = r"""
1 + 2|1 - 2|3 * 4|7 / 2|6 / 2|7 // 2|-7 // 2|-7 % 3|7 % -3|7.5 // 2|2 ** 10|2 ** -1|2 ** 0.5|1 / 3|1e16|1e15|1e-4|1e-5|1e100|0.1 + 0.2
1.0|-0.0|100000000000000000000.0|3.0 * 2|5 % 3.5|1_000|0x1f|0b11|0o17|10 // 3.0|1e16 | string|1e-5 ~ ''|[1.0, 1e22, 1e-7]|{'a': 1.5e300}
1 < 2|1 < 2 < 3|3 > 2 > 2|'a' < 'b'|[1, 2] < [1, 3]|1 == 1.0|true == 1|'1' == 1|none == none|[1] == [1.0]|{} == []|1 < 'a'|none < 1|[] < 1
1 in [1, 2]|'a' in 'abc'|'' in 'abc'|'a' in {'a': 1}|1 not in [1]|1 in 'abc'|'a' in none|'a' in nope|1 in 5
not 1|not ''|not []|not none|not nope|1 and 2|0 and 2|0 or 'x'|'' or none|nope or 'x'|1 if 2 else 3|1 if none|(1 if 0) is undefined
'x' if nope else 'y'|'x' if nope is defined and nope.a else 'y'|s is string and i is number|not s is string
s ~ i|s ~ none|i ~ f|l ~ d|none ~ true|nope ~ 'x'|'a' ~ 1 ~ [2]|'a' + 'b'|'a' + 1|1 + 'a'|[1] + [2]|(1,) + (2,)|[1] + (2,)|'a' * 3|3 * 'a'|[0] * 2
'a' * -1|'ab' * 2.0|none + 1|nope + 1|true + true|true ~ 1|-true|+5|- 'a'|-f|+'a'
'%s' % s|'%s and %s' % (1, 'b')|'%d' % 3.7|'%5.2f|' % 3.14159|'%-5s|' % 'ab'|'%05d' % 42|'%x' % 255|'%X' % 255|'%o' % 8|'%e' % 12345.678|'%g' % 0.0001
'%g' % 1e10|'%r' % 'it'|'%c' % 65|'%c' % 'z'|'%%' % ()|'%(a)s-%(b)d' % {'a': 1, 'b': 2}|'%s' % [1, 2]|'%s' % (1,)|'%s %s' % 1|'x' % 1|'%i' % '1'|'%+d' % 5|'% d' % 5
'%s' | format(1)|'%s-%s' | format('a', 2)|'%(x)s' | format(x=1)|'%s' | format(s)|'%.3s' % 'abcdef'|'%#x' % 255|'%10.3e|' % 1.5|'%s' % none|'%s' % true
'{} {}'.format(1, 'a')|'{0}{1}{0}'.format('a', 'b')|'{x}'.format(x=1)|'{:>5}|'.format('a')|'{:05d}'.format(42)|'{:.2f}'.format(3.14159)|'{:,}'.format(1234567)
'{!r}'.format('a')|'{a[0]}'.format(a=[1])|'{:^7}|'.format('ab')|'{:x}'.format(255)|'{:%}'.format(0.5)|'{{}}'.format()|'{}'.format(none)|'{:*<4}'.format(1)
s[0]|s[-1]|s[1:3]|s[::-1]|s[:-1]|s[10:]|s[100]|l[0]|l[5]|l[-1]|l[1:]|d['b']|d.b|d['nope']|d.nope|d.nope is undefined|o[0].k|o[0]['v']|d['a'][1]|(1, 2)[0]
s.upper()|s.lower()|s.title()|s.capitalize()|s.swapcase()|s.casefold()|t.strip()|t.lstrip()|t.rstrip()|t.strip(' \n')|s.strip('H')|'xxaxx'.strip('x')|t.split()
t.split(' ')|'a,b,c'.split(',')|'a,b,c'.split(',', 1)|'a,b,c'.split(',', maxsplit=1)|'a b  c'.split(maxsplit=1)|'a b  c'.split(none, 1)|'a,b,c'.rsplit(',', 1)
'a b c'.rsplit(maxsplit=1)|''.split()|''.split(',')|'abc'.split('')|m.splitlines()|m.splitlines(true)|'a\rb\x0bc'.splitlines()|s.partition(', ')|s.rpartition('l')|s.partition('zz')
s.rpartition('zz')|s.startswith('He')|s.startswith(('x', 'He'))|s.startswith('el', 1)|s.startswith('el', 1, 2)|s.endswith('ld')|s.endswith('l', 0, 4)|s.endswith(('a', 'd'))
s.find('l')|s.find('l', 4)|s.find('zz')|s.find('l', 0, 2)|s.rfind('l')|s.index('w')|s.index('zz')|s.rindex('l')|s.count('l')|s.count('l', 3)|s.count('')|s.replace('l', 'L')
s.replace('l', 'L', 1)|s.replace('', '-')|s.replace('l', '')|s.removeprefix('Hel')|s.removesuffix('ld')|s.removeprefix('x')|'42'.zfill(5)|'-42'.zfill(5)|'ab'.ljust(5) ~ '|'
'ab'.rjust(5)|'ab'.center(7) ~ '|'|'ab'.center(6, '*')|'abc'.center(6, '*')|'ab'.ljust(4, '.')|'ab'.rjust(1)|'a-b'.join(['x', 'y'])|','.join('abc')|','.join([1])|','.join([])
s.isalpha()|'abc'.isalpha()|''.isalpha()|'12'.isdigit()|'12'.isdecimal()|'1.2'.isdigit()|'½'.isnumeric()|'²'.isdigit()|'²'.isdecimal()|'a1'.isalnum()|'  '.isspace()|''.isspace()
'Ab'.istitle()|'Ab Cd'.istitle()|'AB'.istitle()|'AB'.isupper()|'ab'.islower()|'1'.isupper()|'é'.isascii()|'abc'.isidentifier()|'1a'.isidentifier()|'a b'.isprintable()|'a\nb'.isprintable()
'a\tb'.expandtabs(4)|'ab'.encode()|'a'.translate({})|'abc'.__class__|s.nothing()|s.nothing|d.keys() | list|d.values() | list|d.items() | list|d.get('b')|d.get('x')|d.get('x', 5)|d.get('x') is none
d.copy()|d.pop('b')|d.update({})|l.append(1)|l.index(1)|l.index(9)|l.count(1)|l.copy()|l.pop()|l.sort()|(1, 2, 1).count(1)|(1, 2).index(2)|d.keys()|d.values()|d.items()|i.bit_length()|f.is_integer()
'abc' | length|l | length|d | length|nope | length|n | length|i | length|(1, 2) | length|range(5) | length|'' | first|[] | first|[] | last|nope | first|nope | last|nope | items | list|n | items
l | first|l | last|s | first|s | last|d | first|l | sort|l | sort(reverse=true)|l | sort(true)|w | sort|w | sort(case_sensitive=true)|o | sort(attribute='v', reverse=true) | map(attribute='v') | list
o | sort(attribute='k,v') | map(attribute='v') | list|[1, 'a'] | sort|w | unique | list|w | unique(true) | list|o | unique(attribute='k') | list|l | reverse | list|s | reverse|d | reverse
l | join|l | join(',')|l | join(d='-')|o | join(',', attribute='k')|o | join(',', 'k')|w | join(attribute=0)|nope | join|n | join|'abc' | join('-')|[1, none, true] | join(' ')
s | replace('l', 'L', 1)|s | replace('l', 'L', count=1)|s | replace(old='l', new='L')|'aaa' | replace('a', 'b', 2)|i | replace('4', '5')|s | trim('Hd')|s | trim(chars='H')|nope | trim|n | trim|i | trim
m | indent|m | indent(2)|m | indent(4, true)|m | indent(4, first=True)|m | indent(width=2, first=true, blank=true)|m | indent('>> ')|m | indent(blank=true)|m | indent(first=true)|'' | indent(first=true)|i | indent
nope | default('x')|n | default('x')|n | default('x', true)|'' | default('x', boolean=true)|e | default('x', boolean=false)|nope | default|nope | default(default_value='q')|d.a | default('x')|z | d(1, true)
'42' | int|'x' | int|'x' | int(7)|'x' | int(default=3)|'0x1f' | int(0, 16)|'1f' | int(base=16)|'101' | int(0, 2)|3.9 | int|-3.9 | int|'3.9' | int|none | int|nope | int|' 5 ' | int|true | int|[] | int|'1e3' | int
'x' | float|'1.5' | float|'x' | float(2.5)|none | float|3 | float|'1e3' | float|'inf' | float|nope | float|f | round|3.14159 | round(2)|2.5 | round|3.5 | round|f | round(method='floor')|2.1 | round(0, 'ceil')|42 | round
1234.5 | round(-2)|3.7 | round(method='floor') | int|-3.5 | abs|'a' | abs|l | sum|o | sum(attribute='v')|o | sum('v', 10)|[] | sum|[] | sum(start=5)|[1.5, 2] | sum|l | min|l | max|[] | min|w | min|w | max
o | max(attribute='v')|o | min(attribute='v')|w | max(case_sensitive=true)|d | dictsort|d | dictsort(true)|{'b': 1, 'a': 2} | dictsort(by='value')|{'b': 1, 'a': 2} | dictsort(reverse=true)|d | items | list|s | items
o | map(attribute='k') | list|o | map(attribute='x', default='D') | list|o | map('length') | list|w | map('upper') | list|w | map('replace', 'a', 'b') | list|p | map(attribute='a.b') | list|w | map | list
o | map(attribute='nope') | list|[[1, 2]] | map(attribute=0) | list|[[3, 1]] | map('sort') | list|w | map('default', 'x') | list|l | map('int') | map('string') | join('+')
l | select('odd') | list|l | select('greaterthan', 1) | list|l | reject('odd') | list|[0, 1, '', none] | select | list|o | selectattr('k', 'equalto', 'x') | list|o | selectattr('v', '>', 1) | map(attribute='v') | list
o | selectattr('nope') | list|o | selectattr('nope', 'defined') | list|o | rejectattr('k', 'eq', 'x') | list|o | rejectattr('v') | list|p | selectattr('a.b') | list|o | selectattr('k', 'in', ['y']) | list|o | selectattr('k', 'nosuch') | list
o | groupby('k')|o | groupby('k') | map(attribute='grouper') | list|o | groupby('k') | map('first') | list|o | groupby('nope', default='D')|o | groupby(attribute='v') | map('last') | list
l | batch(2) | list|l | batch(2, 0) | list|range(7) | batch(3, fill_with='x') | list|range(7) | slice(3) | list|range(7) | slice(3, 'x') | list|s | list|d | list|i | list|nope | list|n | list|'a' | list
s | truncate(5)|s | truncate(5, true)|s | truncate(5, true, '')|s | truncate(8, end='..')|'foo bar baz qux' | truncate(9)|'foo bar baz qux' | truncate(11)|'foo bar baz qux' | truncate(9, true, '...', 0)|s | truncate(length=6, leeway=0)
s | wordcount|t | wordcount|'a-b c' | wordcount|s | center(20) ~ '|'|s | center|h | striptags|'<!-- x -->a  <b>c</b>' | striptags|h | escape|h | e | e|h | forceescape|h | safe | forceescape|h | urlencode|'a b/c?d=é' | urlencode
{'a': 1, 'b c': 'é&'} | urlencode|[('a', 1)] | urlencode|'foo bar baz' | wordwrap(7)|'foobarbaz' | wordwrap(4)|'foobarbaz' | wordwrap(4, false)|'a b c d' | wordwrap(3, wrapstring='/')|'a-b-c-d' | wordwrap(3, break_on_hyphens=false)
1 | filesizeformat|1000 | filesizeformat|1500000 | filesizeformat|1024 | filesizeformat(true)|123456789 | filesizeformat(binary=true)|0 | filesizeformat|'13' | filesizeformat|[3, 'a'] | pprint|{'b': 1, 'a': 2} | pprint
{'class': 'x', 'id': none, 'a"b': '<'} | xmlattr|{'a': 1} | xmlattr(false)|{} | xmlattr|d | tojson|d | tojson(2)|d | tojson(indent=2)|d | tojson(ensure_ascii=true)|s | tojson|s | tojson(ensure_ascii=true)
h | tojson|l | tojson(separators=(',', ':'))|{'b': 1, 'a': 2} | tojson(sort_keys=true)|nope | tojson|[1.0, 1e16, 1e-5, true, none] | tojson|'é\n"\\' | tojson|{1: 2} | tojson|{true: 1, none: 2} | tojson|(1, 2) | tojson|d | tojson(indent=none)|[] | tojson(indent=2)|{} | tojson(indent=4)
d | tojson(False, 2)|d | tojson(true, none)|range(3) | tojson|d | attr('b')|s | attr('upper')|d | string|l | string|none | string|true | string|'a' | string|[none, true, 'a', 1.0] | string|{'a': 'it\'s'} | string|["it's", 'q"', 'a\nb\t\\é\x00'] | string
s | upper | lower | title|'hello WORLD foo-bar' | title|"it's a dog's" | title|"it's".title()|'a1b' | title|'hELLO' | capitalize|'ß' | upper|none | upper|i | upper|nope | upper|true | lower|none | title
none is iterable|nope is iterable|'abc' is sequence|{} is sequence|1 is sequence|range(3) is sequence|range(3) is iterable|range is callable|s is callable|s.upper is callable|cycler is callable|1 is divisibleby 2|4 is divisibleby(2)
1 is eq 1|1 is equalto(1)|1 is ne 2|1 is lt 2|1 is le(1)|1 is gt 0|1 is ge 1|1 is greaterthan 0|1 is lessthan 0|1 is in [1]|'a' is in 'abc'|1 is sameas 1|none is sameas none|true is sameas true|s is sameas s|'x' is filter
'upper' is filter|'nosuch' is filter|'odd' is test|'nosuch' is test|true is number|true is integer|1.0 is integer|1 is float|1 is string|none is not defined|nope is not defined|d.x is defined|d.b is defined|none is mapping|'abc' is iterable
h | safe is escaped|'a' is lower|'A' is upper|'a b1' is lower|'' is lower|'1' is upper
("it's " | safe) + "it's"|("a" | safe) ~ "<"|"<" ~ ("b" | safe)|("<b>" | safe) + h|h + ("x" | safe)|("%s" | safe) % "<"|("%s" | safe) | format("<")|("a" | safe).upper() + "<"|["<", "b" | safe] | join|["<", "b"] | join("," | safe)|("," | safe).join(["<"])
("<" | safe) * 2 + "<"|("a<b" | safe)[1] + "<"|("x" | safe) | upper ~ "<"|("x" | safe) | trim ~ "<"|(h | e) + "<"|("x" | safe) | replace("x", "<")|("x" | safe).replace("x", "<")|("<i>x</i>" | safe) | striptags|("a" | safe) is string|("a" | safe) == "a"
(("a" | safe) ~ "b") is escaped|("<" | safe) | tojson|("a b" | safe).split() | join("<")|("a" | safe) | string ~ "<"|("a" | safe) | lower ~ "<"|("{}" | safe).format("<")|("a" | safe) | default("b") ~ "<"|[("a" | safe)] | first ~ "<"|("\n" | safe) | indent ~ "<"
range(3) | list|range(1, 4) | list|range(0, 10, 3) | list|range(5, 0, -2) | list|range(3)|range(0)|dict(a=1, b=2)|dict({'a': 1}, b=2)|dict([('a', 1)])|dict()|lipsum is callable|namespace(a=1).a|namespace({'a': 2}).a|joiner is callable
cycler(1, 2).next()|[1, 2][0]|(1,)|()|(1, 2)|{'a': {'b': [1]}}|[[], {}]|{1: 'a', 'b': none}|{'a': 1, 'a': 2}|[1, 'two', none, true, 3.5]|['a"b', "a'b", 'a\'"b']|'a' 'b'|"tab\there"|'\u00e9'|'\x41'|'\\n'|'a\qb'|'\N{BULLET}'|'\101'
true|True|TRUE|none|None|NONE|false|False|nope|nope.x|nope['x']|nope()|s.x.y|d.x.y|n.x|n['x']|n.x.y|l.x|i.x|l['x']|l[none]|d[none]|d[[1]]|s['x']|s()|1()|messages[0]['role']|messages[-1].content|messages[1].tool_calls[0].function.name
messages[0].tool_calls is defined|messages[0].tool_calls | length|messages | map(attribute='role') | join(',')|messages | selectattr('role', 'eq', 'user') | list | length|messages[1].content is none|messages[1:]|messages | last|messages[::-1] | map(attribute='role') | list
tools is iterable and tools | length > 0|tools is not none|tools is defined and tools|documents is none|add_generation_prompt | string|raise_exception is defined|strftime_now is callable|self is defined|loop is defined|caller is defined|varargs is defined
'a' if s is string else s | tojson|l | length > 2 and 'x'|(l | length) + 1|l | first + 1|-l | first|not l | length > 5|s | length - 1|2 + 3 * 4 ** 2|-2 ** 2|(1, 2) == (1, 2)|[1, 2] == (1, 2)|'a' ~ 1 + 2|1 + 2 ~ 'a'|1 < 2 == true|not 1 == 2
s | random | length|[] | random|[7] | random|l | slice|nope | upper | lower|s | nosuch|s is nosuch|nosuch(1)|s | upper()|s | replace|s | replace('a')|l | join(1, 2, 3)|s | upper(1)|m | indent(foo=1)|s.upper(1)|s.replace('a')|range()|dict(1)
[1, 2] | sum ~ 'x'|'abc' | map('upper') | join|'abc' | select('in', 'ab') | join|[[1, 2], [3]] | sum(start=[])|{'a': 1} | length|'a,b' | split(',')|'a' | bool|[[1, 2]] | lines|'a' | zip('b')|'a' is startingwith('a')|'a' is endingwith 'a'|[1] | chain([2])
"""
# Generators: true, without a length, walked once, and failing where an item is taken.
GENERATORS = ["l | map('string')", "l | select('odd')", "o | selectattr('k', 'equalto', 'x')", "el | select", "w | reject('string')", "o | rejectattr('v')",
              "w | unique", "d | items", "l | batch(2)", "l | slice(2)", "l | reverse", "nope | items", "nope | map('upper')", "d | reverse", "n | reverse",
              "range(3) | reverse", "d.keys() | reverse", "l | select | reverse", "l | map('nothing')", "l | map", "o | selectattr", "s | items",
              "i | map('abs')", "['a', 1] | map('abs')", "[1, 'a'] | map('round')", "l | batch('x')", "l | slice(0)", "o | unique", "nope | reverse"]
WITH_GENERATORS = [
    "{% if G %}y{% else %}n{% endif %}", "{{ (G) | length }}", "{{ (G) | first }}", "{{ (G) | last }}", "{{ (G) | list }}", "{{ (G) | list | length }}",
    "{{ (G)[0] }}", "{{ (G)[:1] }}", "{{ (G) | tojson }}", "{{ (G) | join('-') }}", "{{ (G) | sort }}", "{{ (G) + [1] }}", "{{ [1] + (G) }}", "{{ (G) * 2 }}",
    "{{ (G) == (G) }}", "{% set g = G %}{{ g == g }}{{ g != g }}", "{{ 3 in (G) }}", "{% set g = G %}{{ 3 in g }}{{ g | list }}",
    "{% set g = G %}{% for x in g %}{{ x }}{% endfor %};{% for x in g %}{{ x }}{% else %}none{% endfor %}",
    "{% set g = G %}{{ g | first }}{{ g | first }}{{ g | list }}{{ g | first is defined }}", "{{ (G) is sequence }}{{ (G) is iterable }}{{ (G) is mapping }}",
    "{{ (G) is string }}{{ (G) is none }}{{ (G) is defined }}{{ (G) is callable }}{{ (G) is number }}", "{% set g = G %}ok", "{{ (G) and 1 }}{{ not (G) }}",
    "{{ (G) | default('D', true) is iterable }}", "{{ (G) | map('string') | join(',') }}", "{{ (G) | select | list }}{{ (G) | reverse | list }}",
    "{% for x in G %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in G if x %}{{ loop.length }}{% endfor %}", "{% set a, b = G %}{{ a }}{{ b }}", "{% set a, b, c = G %}{{ a }}{{ b }}{{ c }}",
    "{{ (G).x is defined }}{{ (G).x }}", "{{ (G).items() }}", "{{ (G) < [1] }}", "{{ ','.join(G) }}", "{{ (G) | sum }}", "{{ (G) | max }}", "{{ (G) | unique | list }}",
    "{{ dict(G) }}", "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*(G)) }}", "{{ (G) | groupby('k') | length }}", "{{ (G) | batch(2) | list }}",
    "{% set ns = namespace(g=G) %}{{ ns.g | list }}{{ ns.g | list }}", "{% set x = [G] %}{{ x[0] | list }}{{ x[0] | list }}{{ x | length }}",
    "{% macro f(a) %}{{ a | list }}{% endmacro %}{% set g = G %}{{ f(g) }}{{ f(g) }}", "{{ (G) | int }}", "{{ (G) | truncate(1) }}", "{{ (G) | dictsort }}",
    "{{ (G) in d }}{{ (G) in l }}", "{{ (G) | string is string }}", "{{ (G) | wordcount }}", "{{ (G) | upper is string }}", "{{ (G) | urlencode }}",
]
TEMPLATES = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}|{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}",
    "{% for x in el %}x{% else %}none{% endfor %}",
    "{% for x in nope %}x{% else %}none{% endfor %}",
    "{% for x in n %}x{% else %}none{% endfor %}",
    "{% for x in i %}x{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for c in 'aé' %}{{ c }}-{% endfor %}",
    "{% for x in l recursive %}{{ x }}{% endfor %}",
    "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{{ loop.depth0 }}{% endif %}{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}",
    "{% for x in l %}{% set y = x %}{% endfor %}{{ y is defined }}",
    "{% set y = 0 %}{% for x in l %}{% set y = x %}{% endfor %}{{ y }}",
    "{% set ns = namespace(y=0) %}{% for x in l %}{% set ns.y = ns.y + x %}{% endfor %}{{ ns.y }}",
    "{% set ns = namespace() %}{{ ns.y is defined }}{{ ns.y }}",
    "{% set ns = namespace(a=1) %}{% set ns.b = ns.a ~ 'x' %}{{ ns.b }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set x %}a {{ i }} <{% endset %}{{ x }}{{ x is string }}",
    "{% set x | upper %}abc{% endset %}{{ x }}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% with %}{% set q = 3 %}{{ q }}{% endwith %}{{ q }}",
    "{% if nope %}a{% elif 1 %}b{% else %}c{% endif %}",
    "{% if nope.x %}a{% else %}b{% endif %}",
    "{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(a=5) }} {{ f() }}",
    "{% macro f(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}",
    "{% macro f() %}{{ varargs | length }}{{ kwargs.x }}{% endmacro %}{{ f(1, x=2) }}",
    "{% macro f() %}{{ kwargs | length }}{% endmacro %}{{ f() }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}",
    "{% macro f(a) %}{{ caller() }}{{ a }}{% endmacro %}{% call f(1) %}in{% endcall %}",
    "{% macro f() %}{{ caller(5) }}{% endmacro %}{% call(x) f() %}<{{ x }}>{% endcall %}",
    "{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(1) }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f.name }}{{ f.arguments }}{{ f.catch_kwargs }}{{ f.catch_varargs }}{{ f.caller }}",
    "{% macro f(x) %}{% if x %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f(x) %}  {{- x -}}  {% endmacro %}[{{ f(1) }}]{{ f('<') ~ '>' }}{{ f(1) is string }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}",
    "{% filter indent(2, first=true) %}a\nb{% endfilter %}",
    "{% raw %}{{ x }}{% endraw %}",
    "a\n{% if true %}\n  b\n{% endif %}\nc\n",
    "a\n  {%- if true -%}\n  b\n  {%- endif %}\nc",
    "  {% if true %}  x{% endif %}  \n  y",
    "  {%+ if true %}x{% endif +%}\ny",
    "{# c #}\nx\n  {# d #}\ny {#- e -#} z",
    "a\n\n{{ 1 }}\n\n",
    "a\n",
    "{{ 'a' }}\n\n",
    "x\r\ny\r\n{% if true %}\r\nz{% endif %}\r\n",
    "x\ry",
    "{{ 'a\r\nb' | length }}",
    "{{- 1 -}} \n x",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}",
    "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set j = joiner() %}{{ j() }}{{ j() }}",
    "{% do l.append(1) %}",
    "{% block x %}in{% endblock %}",
    "{{ self }}{{ self.NAME }}{{ self['name'] }}{{ self.x is defined }}{{ self is defined }}{{ self is none }}{{ self is mapping }}",
    "{{ self is iterable }}",
    "{{ self.name.first }}",
    "{% macro f() %}{{ self.NAME }}{{ self is defined }}{% endmacro %}{{ f() }}{% if self %}y{% endif %}",
    "{% block x %}in{% endblock %}{{ self.x() }}",
    "{% include 'x' %}",
    "{% autoescape true %}{{ h }}{% endautoescape %}",
    "{% set d2 = dict(a=1) %}{{ d2.update({'b': 2}) }}{{ d2 }}",
    "{% set x = {'a': 1} %}{{ x.a }}{{ x['a'] }}{{ x.items() | list }}",
    "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}{{ m['content'] is none }}{% endfor %}",
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% endfor %}",
    "{% for g in o | groupby('k') %}{{ g.grouper }}:{{ g.list | length }};{{ g[0] }}{% endfor %}",
    "{% for k, g in o | groupby('k') %}{{ k }}:{{ g | map(attribute='v') | join(',') }};{% endfor %}",
    "{% for r in range(5) | batch(2) %}{{ r }}{% endfor %}",
    "{{ raise_exception('no') }}",
    "{{ '\n' ~ 'a' }}\n{{ \"\n\" }}",
    "{{ l.append(4) }}",
    "{% set x = [] %}{% for i in range(3) %}{% set x = x + [i] %}{% endfor %}{{ x }}",
    "{% set x = 'a' %}{% for i in range(2) %}{{ x }}{% set x = 'b' %}{{ x }}{% endfor %}{{ x }}",
    "{{ loop }}",
    "{% for x in l %}{{ loop.index is even }}{{ loop.foo is defined }}{% endfor %}",
    "{% for x in l %}{% for y in w %}{% if loop.first %}{{ loop.index }}{{ x }}{{ y }}{% endif %}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% set outer = namespace(v=none) %}{% for x in l %}{% if outer.v is none or x > outer.v %}{% set outer.v = x %}{% endif %}{% endfor %}{{ outer.v }}",
    "{% generation %}x{% endgeneration %}",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }}",
    "{% set x = 1 %}{% filter upper %}{% set x = 2 %}{{ x }}{% endfilter %}{{ x }}",
    "{% set x = 1 %}{% for i in el %}{% else %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% with x = 2, y = x %}{{ x }}{{ y }}{% endwith %}",
    "{% with x = y, y = 1 %}{{ x is defined }}{% endwith %}",
    "{% with (a, b) = 'xy' %}{{ a }}{{ b }}{% endwith %}",
    "{% set a, b = 'xy' %}{{ a }}{{ b }}",
    "{% set a, b = d %}{{ a }}{{ b }}",
    "{% set a, b, c = d %}{{ a }}{{ b }}{{ c }}",
    "{% for a, b in ['xy', [1, 2], {'k': 1, 'l': 2}] %}{{ a }}{{ b }};{% endfor %}",
    "{% for x in l %}{% continue %}{% else %}none{% endfor %}",
    "{% for x in l %}{% break %}{% else %}none{% endfor %}",
    "{% for x in l %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l %}{% for y in l %}{% if y > x %}{% break %}{% else %}{% continue %}{% endif %}{% else %}n{% endfor %}{% if x %}{% continue %}{% endif %}{% else %}m{% endfor %}",
    "{% for x in l recursive %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}",
    "{% macro f(x, q='q') %}({{ x }}{{ q }}{{ q is defined }}){% endmacro %}{{ f(nope) }}{{ f(1, nope) }}{{ f(1, q=nope) }}{{ f(1, d.zz) }}{{ f(nope, nope) }}",
    "{% macro f(x, q=x) %}({{ x }}{{ q }}){% endmacro %}{{ f(1, nope) }}{% set g = f %}{{ g(2, nope) }}{{ g(q=nope, x=3) }}",
    "{% set ns = namespace(v=0) %}{% macro f() %}{% set ns.v = 1 %}{% endmacro %}{{ f() }}{{ ns.v }}",
    "{% set ns = namespace(v=0) %}{% macro f() %}{% set ns.v %}x{{ i }}{% endset %}{% endmacro %}{{ f() }}{{ ns.v }}",
    "{% set ns = namespace() %}{% set ns.v | upper %}abc{% endset %}{{ ns.v }}{{ ns.v is string }}",
    "{% macro f() %}{% set q.v = 1 %}{% endmacro %}{{ f() }}",
    "{% for x in s %}{{ loop.last }}{{ loop.length }}{{ loop.revindex0 }}{{ loop.nextitem }}{% endfor %}",
    "{% macro f(x) %}{{ x is defined }}{{ x is undefined }}{{ x or 'no' }}{% endmacro %}{{ f(nope) }}{{ f() }}",
    "{% macro f() %}{{ caller(nope) }}{{ caller() }}{% endmacro %}{% call(x='d') f() %}<{{ x }}>{% endcall %}",
    "{{ [nope, nope] | sort }}{{ o | sort(attribute='nope') }}{{ [none, none] | sort }}{{ [{}, {}] | sort }}",
    "{{ l | map(attribute='k') | sort }}",
    "{{ 1 }}{{ 2 }} {{ 3 }}{% if 1 %} 4 {% endif %}",
    "{{ d }}{{ l }}{{ o }}{{ messages }}",
    "{{ (d.items() | list)[0] }}{{ d.items() | first }}{{ d.keys() | first }}",
    "{{ ['a', 'b'] | map('upper') }}"[:0] + "{{ ['a', 'b'] | map('upper') | list }}",
    "{% if 'a' in d and d.a is sequence and d.a is not string %}y{% endif %}",
    "{% if s.split(',')[-1].strip() == 'wörld' %}y{% endif %}",
    "{% set content = s %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ content }}",
    "{% set c = '<think>a</think>\\n\\nb' %}{{ c.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}|{{ c.split('</think>')[-1].lstrip('\\n') }}",
]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def composed(chance, n):
    """Chains of filters, methods, operators and tests, with values of all kinds."""
    values = NAMES + ["m", "p", "messages", "(1, 'a')", "'a-b_C d'", "'  x '", "[none, 1, 'q']", "{'k': [1, {'z': none}]}", "1.0", "-3.7",
                      "(h | safe)", "'%s|%s'", "range(4)", "d.items()", "o[0]", "s[2:5]", "'12'", "'é\\n'", "[[1, 2], [3, 4]]", "nope.a"]
    # What jinja2 makes lazily fails later there, or never.
    steps = [f for f in FILTERS if f.split("|")[0] not in ("random", "items", "unique", "reverse")] + """indent(2,true) replace('a','b') sort(reverse=true) map('upper')|list
        select('string')|list selectattr('k')|list join(attribute='k') default([]) d(none,true) list|last first|default('F') int(7)
        map(attribute='v')|list groupby('k')|list tojson(indent=1) string|trim batch(3,'-')|list sum(start=2) round(1) truncate(4,true,'~',0)
        reject('none')|list slice(2,0)|list dictsort|list max|string list|sort|join('/') wordcount string|title string|urlencode""".split()
    methods = """upper() strip() split() split('a') split(',',1) title() replace('a','_') startswith('a') find('b') count('a') join(['x','y'])
        items()|list keys()|list get('k') get('a',1) values()|list lstrip('a<') splitlines() zfill(4) center(9,'.') partition('-') isdigit()
        capitalize() rsplit(none,1) index(1) format(1,2) rjust(6) islower() removeprefix('a') encode() swapcase() endswith(('d','>'))""".split()
    operators = "+ - * / // % ** ~ == != < <= > >= in and or".split() + ["not in", "is eq", "is in"]
    made = []
    for _ in range(n):
        value = chance.choice(values)
        for _ in range(chance.randint(1, 2)):
            value += " | " + chance.choice(steps) if chance.random() < 0.6 else "." + chance.choice(methods)
            value = "(" + value + ")" if chance.random() < 0.5 else value
        if chance.random() < 0.4:
            value = "(%s) %s (%s)" % (value, chance.choice(operators), chance.choice(values))
        made.append("{{ %s }}" % value)
    return made


def statements(chance, n):
    """Blocks in each other, with every way to trim what stands between them."""
    names = ["a", "b", "ns.v", "ns.w", "i", "s", "loop.index", "loop.first", "loop.last", "loop.index0", "loop.length", "loop.previtem", "loop.nextitem",
             "loop.depth", "loop.cycle('x', 'y')", "loop.changed(a)", "x", "y", "caller()", "m1(a)", "m2(1, b)", "m1()", "m2(q=2)", "l[0]", "d.b", "nope"]
    values = ["1", "'t'", "a", "b", "a ~ b", "[a, 1]", "x", "y", "ns.v", "loop.index", "none", "i + 1", "s[:2]", "m1(b)", "not a", "l", "a + 1"]
    lists = ["l", "w", "el", "d", "[1, 2]", "range(3)", "s[:3]", "nope", "o", "[[1, 2], [3, 4]]", "l | select('odd')", "[x, y]", "messages"]
    tests = ["a", "b is defined", "loop.first", "x == 1", "ns.v", "x is odd", "not b", "loop is defined", "y is string", "a == b", "i > 3", "nope", "x in l"]
    texts = ["t", " t ", "\n", "\n\n", "  \n", "t\n", "\n  t", " ", "", "\t", "é\n ", "{", "}}"]

    def tag(inner):
        return "{%" + chance.choice(["", "", "", "-", "+"]) + " " + inner + " " + chance.choice(["", "", "", "-", "+"]) + "%}"

    def body(depth):
        return "".join(node(depth - 1) + chance.choice(texts) for _ in range(chance.randint(0, 3)))

    def printed():
        return "{{" + chance.choice(["", "", "-"]) + " " + chance.choice(names) + " " + chance.choice(["", "", "-"]) + "}}"

    def node(depth):
        kind = chance.choice(["print", "print", "set", "set", "comment"] + ["if", "for", "for", "with", "block set", "macro", "call", "filter", "generation"] * (depth > 0))
        if kind == "print":
            return printed()
        if kind == "set":
            return tag("set " + chance.choice(["a", "b", "ns.v", "ns.w", "x", "a, b"]) + " = " + chance.choice(values))
        if kind == "comment":
            return "{#" + chance.choice(["", "-"]) + " c " + chance.choice(["", "-"]) + "#}"
        inside = body(depth)
        if kind == "if":
            more = chance.choice(["", tag("else") + body(depth), tag("elif " + chance.choice(tests)) + body(depth) + tag("else") + body(depth)])
            return tag("if " + chance.choice(tests)) + inside + more + tag("endif")
        if kind == "for":
            leave = tag("if " + chance.choice(tests)) + tag(chance.choice(["break", "continue"])) + tag("endif") if chance.random() < 0.3 else ""
            head = "for " + chance.choice(["x", "x", "y", "x, y", "a"]) + " in " + chance.choice(lists) + (" if " + chance.choice(tests) if chance.random() < 0.2 else "")
            return tag(head) + inside + leave + (tag("else") + body(depth) if chance.random() < 0.2 else "") + tag("endfor")
        if kind == "with":
            return tag("with " + chance.choice(["a = 1", "a = b, b = a", "x = a", ""])) + inside + tag("endwith")
        if kind == "block set":
            return tag("set " + chance.choice(["a", "b", "ns.v", "a | upper", "b | trim"])) + inside + tag("endset")
        if kind == "macro":
            return tag("macro " + chance.choice(["m1(a)", "m1(x=a)", "m2(a, q=b)", "m2(x, y)"])) + inside + tag("endmacro")
        if kind == "call":
            return tag(chance.choice(["call m1(a)", "call m2(1)", "call m1()"])) + inside + tag("endcall")
        if kind == "filter":
            return tag("filter " + chance.choice(["upper", "trim", "indent(2)", "replace('t', 'T')"])) + inside + tag("endfilter")
        return tag("generation") + inside + tag("endgeneration")

    start = "{% set ns = namespace(v=1) %}{% set a = 2 %}{% macro m1(a) %}<{{ a }}{{ b }}>{% endmacro %}{% macro m2(x, q='q') %}({{ x }}{{ q }}{{ ns.v }}){% endmacro %}"
    return [start + body(4) for _ in range(n)]


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda format: format
    return made


def rendered(env, source):
    try:
        out = env.from_string(source).render(**copy.deepcopy(CONTEXT))
    except Exception:
        return None
    # Addresses of objects are of no use to anybody, and a case of its own in no template.
    return ... if " at 0x" in out or "<bound method" in out or "<built-in" in out else out


def main():
    env = environment()
    sources = []
    for name in NAMES:
        sources += ["{{ %s is %s }}" % (name, test) for test in TESTS]
        sources += ["{{ %s | %s }}" % (name, filter) for filter in FILTERS]
    for line in EXPRESSIONS.strip().split("\n"):
        # A bar with spaces is a filter, one without ends the expression, outside of quotes.
        part, quote, at = "", "", 0
        for at, c in enumerate(line):
            if quote:
                quote = "" if c == quote and line[at - 1] != "\\" else quote
            elif c in "'\"":
                quote = c
            elif c == "|" and line[at - 1] != " ":
                sources.append("{{ %s }}" % part)
                part = ""
                continue
            part += c
        sources.append("{{ %s }}" % part)
    sources += TEMPLATES
    sources += [template.replace("G", generator) for template in WITH_GENERATORS for generator in GENERATORS]
    sources += composed(random.Random(7), 900)
    short = [source for source in statements(random.Random(7), 3000) if len(source) < 420]
    sources += [source for source in short if rendered(env, source) is not None][:250]
    sources = list(dict.fromkeys(sources))
    cases = [[source, rendered(env, source)] for source in sources]
    cases = [case for case in cases if case[1] is not ...]
    json.dump({"jinja2": jinja2.__version__, "context": CONTEXT, "cases": cases}, sys.stdout, ensure_ascii=False, indent=0)
    print()


main()
