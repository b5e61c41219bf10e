/** Sampling parameters by llama-server's names, with the server's defaults in empty fields. */
import type { VNode } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { changeSettings, settings } from '../data/chats';
import { defaultOf, propsOf } from '../server/models';
import type { Parameter as Value } from '../types';
import { NumberInput } from './NumberInput';

interface Parameter {
  name: string;
  label: string;
  help: string;
  min?: number;
  max?: number;
  step?: number;
}

/** Those that people change most. */
const MAIN: Parameter[] = [
  { name: 'temperature', label: 'Temperature', help: 'Higher is more varied; 0 takes the likeliest token.', min: 0, step: 0.05 },
  { name: 'top_p', label: 'Top p', help: 'Keeps the likeliest tokens up to this total probability.', min: 0, max: 1, step: 0.01 },
  { name: 'top_k', label: 'Top k', help: 'Keeps this many tokens; 0 keeps all.', min: 0, step: 1 },
  { name: 'min_p', label: 'Min p', help: 'Removes tokens below this share of the likeliest one.', min: 0, max: 1, step: 0.01 },
  { name: 'repeat_penalty', label: 'Repeat penalty', help: '1 is off.', min: 0, step: 0.05 },
  { name: 'n_predict', label: 'Maximum tokens', help: 'Of an answer; -1 has no limit.', min: -1, step: 1 },
  { name: 'seed', label: 'Seed', help: 'The same seed gives the same text; empty or -1 draws one for each answer.', min: -1, step: 1 },
];

/** Those that mean nothing here, or are shown above. */
const LEFT = new Set([...MAIN.map((parameter) => parameter.name), 'adaptive_target', 'adaptive_decay', 'n_probs', 'logit_bias']);

/** The fields. */
export function Samplers(): VNode {
  const { model } = settings.value;
  const known = propsOf(model)?.default_generation_settings.params ?? {};
  const others = Object.keys(known).filter((name) => !LEFT.has(name));
  const set = others.filter((name) => name in settings.value.params).length;
  return (
    <fieldset>
      <legend>Sampling</legend>
      <div class="grid">
        {MAIN.map((parameter) => (
          <NumberField key={parameter.name} {...parameter} />
        ))}
      </div>
      <details class="fold">
        <summary>More samplers{set > 0 ? ` (${set} set)` : ''}</summary>
        {others.length === 0 && <p class="hint">They are listed once the model is loaded.</p>}
        <div class="grid">
          {others.map((name) => {
            const value = known[name];
            if (typeof value === 'number') return <NumberField key={name} name={name} label={name} help="" />;
            if (typeof value === 'boolean') return <Choice key={name} name={name} />;
            return <List key={name} name={name} />;
          })}
        </div>
      </details>
    </fieldset>
  );
}

function change(name: string, value: Value | undefined): void {
  const params = { ...settings.value.params };
  if (value === undefined) delete params[name];
  else params[name] = value;
  changeSettings({ params });
}

function NumberField({ name, label, help, min, max, step }: Parameter): VNode {
  const preset = defaultOf(name, settings.value.model);
  const value = settings.value.params[name];
  return (
    <label class="field" title={help}>
      <span>{label}</span>
      <NumberInput
        name={name}
        min={min}
        max={max}
        step={step === 1 ? 1 : 'any'}
        value={typeof value === 'number' ? value : undefined}
        placeholder={shown(preset)}
        onNumber={(value) => change(name, value)}
      />
    </label>
  );
}

function Choice({ name }: { name: string }): VNode {
  const value = settings.value.params[name];
  return (
    <label class="field">
      <span>{name}</span>
      <select
        aria-label={name}
        value={value === undefined ? '' : String(value)}
        onChange={(event) => {
          const chosen = event.currentTarget.value;
          change(name, chosen === '' ? undefined : chosen === 'true');
        }}
      >
        <option value="">{shown(defaultOf(name, settings.value.model))}</option>
        <option value="true">on</option>
        <option value="false">off</option>
      </select>
    </label>
  );
}

/** A list of texts: the order of the samplers as names, others as JSON, as they may have any character. */
function List({ name }: { name: string }): VNode {
  const value = settings.value.params[name];
  const isOrder = name === 'samplers';
  const [text, setText] = useState('');
  const [isWrong, setWrong] = useState(false);
  // What another has set, such as the button for the server's settings.
  useEffect(() => {
    if (value === undefined && !isWrong) setText('');
    else if (value !== undefined && !same(listOf(text, isOrder), value)) setText(shown(value, isOrder));
  }, [value]);
  const take = (typed: string): void => {
    setText(typed);
    const list = listOf(typed, isOrder);
    setWrong(list === null);
    change(name, list ?? undefined);
  };
  return (
    <label class="field wide">
      <span>{isOrder ? 'samplers, in order, separated by ;' : `${name}, as a JSON list of texts`}</span>
      <input
        type="text"
        spellcheck={false}
        value={text}
        aria-invalid={isWrong}
        placeholder={shown(defaultOf(name, settings.value.model), isOrder)}
        onInput={(event) => take(event.currentTarget.value)}
      />
      {isWrong && <small class="problem">This has to be a JSON list of texts, such as ["\n", ":"]. It is not sent.</small>}
    </label>
  );
}

/** The list that a text stands for; undefined if it is empty, null if it is none. */
function listOf(text: string, isOrder: boolean): string[] | undefined | null {
  if (!text.trim()) return undefined;
  if (isOrder) return text.split(';').map((name) => name.trim()).filter(Boolean);
  try {
    const list: unknown = JSON.parse(text);
    return Array.isArray(list) && list.every((part) => typeof part === 'string') ? list : null;
  } catch {
    return null;
  }
}

function same(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

/** A default as a person writes it: 0.949999988 is 0.95 in f32. */
function shown(value: unknown, isOrder = false): string {
  if (typeof value === 'number') return String(Number(value.toPrecision(6)));
  if (typeof value === 'boolean') return value ? 'on' : 'off';
  if (isOrder && Array.isArray(value)) return value.join(';');
  if (Array.isArray(value)) return JSON.stringify(value);
  return typeof value === 'string' ? value : '';
}
