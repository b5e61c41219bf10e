/** Sampling parameters by llama-server's names, with the server's defaults in empty fields. */
import type { VNode } from 'preact';
import { changeSettings, settings } from '../data/chats';
import { defaultOf, propsOf } from '../server/models';

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
          <Number_ key={parameter.name} {...parameter} />
        ))}
      </div>
      <details class="fold">
        <summary>More samplers{set > 0 ? ` (${set} set)` : ''}</summary>
        {others.length === 0 && <p class="hint">They are listed once the model is loaded.</p>}
        <div class="grid">
          {others.map((name) => {
            const value = known[name];
            if (typeof value === 'number') return <Number_ key={name} name={name} label={name} help="" />;
            if (typeof value === 'boolean') return <Choice key={name} name={name} />;
            return <List key={name} name={name} />;
          })}
        </div>
      </details>
    </fieldset>
  );
}

function change(name: string, value: number | string | boolean | undefined): void {
  const params = { ...settings.value.params };
  if (value === undefined) delete params[name];
  else params[name] = value;
  changeSettings({ params });
}

function Number_({ name, label, help, min, max, step }: Parameter): VNode {
  const preset = defaultOf(name, settings.value.model);
  const value = settings.value.params[name];
  return (
    <label class="field" title={help}>
      <span>{label}</span>
      <input
        type="number"
        inputMode="decimal"
        name={name}
        min={min}
        max={max}
        step={step === 1 ? 1 : 'any'}
        value={typeof value === 'number' ? value : ''}
        placeholder={shown(preset)}
        onInput={(event) => {
          const { value, valueAsNumber } = event.currentTarget;
          change(name, value === '' || Number.isNaN(valueAsNumber) ? undefined : valueAsNumber);
        }}
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

/** A list of names, such as the order of the samplers. */
function List({ name }: { name: string }): VNode {
  const value = settings.value.params[name];
  const isOrder = name === 'samplers';
  return (
    <label class="field wide">
      <span>{isOrder ? 'samplers, in order, separated by ;' : name}</span>
      <input
        type="text"
        spellcheck={false}
        value={typeof value === 'string' ? value : ''}
        placeholder={shown(defaultOf(name, settings.value.model))}
        onInput={(event) => change(name, event.currentTarget.value || undefined)}
      />
    </label>
  );
}

/** A default as a person writes it: 0.949999988 is 0.95 in f32. */
function shown(value: unknown): string {
  if (typeof value === 'number') return String(Number(value.toPrecision(6)));
  if (typeof value === 'boolean') return value ? 'on' : 'off';
  if (Array.isArray(value)) return value.map((part) => JSON.stringify(part).replace(/^"(\w+)"$/, '$1')).join(';');
  return '';
}
