/** How an answer was made: its speed, its seed, and the proof that it can be made again. */
import type { ComponentChildren, VNode } from 'preact';
import { proofOf, runAgain, stopProof } from '../chat/proof';
import { models } from '../server/models';
import type { Message, Run, Timings } from '../types';
import { copyText } from './CopyButton';
import { notify } from './notices';

/** The line below an answer. */
export function Stats({ message }: { message: Message }): VNode | null {
  const run = message.runs?.at(-1);
  if (!run) return null;
  const { timings } = run;
  return (
    <div class="stats">
      {timings && <Figures timings={timings} run={run} />}
      <Origins runs={message.runs ?? []} />
      <ProofButton message={message} />
    </div>
  );
}

/** Where the parts of an answer are from: each by itself if they differ. */
function Origins({ runs }: { runs: readonly Run[] }): VNode {
  const isOne = runs.every((run) => sourceOf(run) === sourceOf(runs[0] as Run));
  return (
    <>
      {(isOne ? runs.slice(-1) : runs).map((run, i) => (
        <span key={i} class="origin">
          {!isOne && <span>part {i + 1}:</span>}
          {models.value.length > 1 && run.model && <span>{run.model}</span>}
          <Chip name="seed" value={String(run.fields['seed'])} />
          {run.fingerprint && <Chip name="fingerprint" value={run.fingerprint} shown={short(run.fingerprint)} />}
        </span>
      ))}
      {runs.length > 1 && <span>{runs.length} parts</span>}
    </>
  );
}

function sourceOf({ model, fingerprint, fields }: Run): string {
  return JSON.stringify([model, fingerprint, fields['seed']]);
}

/** The line below an answer that is being written. */
export function LiveStats({ message }: { message: Message }): VNode | null {
  const run = message.runs?.at(-1);
  if (!run?.timings || run.firstTokenMs === undefined) return null;
  return (
    <div class="stats live">
      <Figures timings={run.timings} run={run} />
    </div>
  );
}

function Figures({ timings, run }: { timings: Timings; run: Run }): VNode {
  const { draft_n: drafted, draft_n_accepted: accepted } = timings;
  const all = timings.cache_n + timings.prompt_n;
  return (
    <>
      <Figure name="tokens per second" unit="tok/s" value={figure(timings.predicted_per_second)} />
      {run.firstTokenMs !== undefined && (
        <Figure name="time to the first token" unit="to first token" value={seconds(run.firstTokenMs)} />
      )}
      <Figure
        name={`${timings.cache_n} of the prompt's ${all} tokens were cached`}
        unit="cached"
        value={`${timings.cache_n}/${all}`}
      />
      <Figure name="tokens written" unit={timings.predicted_n === 1 ? 'token' : 'tokens'} value={String(timings.predicted_n)} />
      {drafted !== undefined && drafted > 0 && (
        <Figure
          name={`${accepted ?? 0} of ${drafted} drafted tokens were accepted`}
          unit="drafts accepted"
          value={`${accepted ?? 0}/${drafted}`}
        />
      )}
    </>
  );
}

function Figure({ name, value, unit }: { name: string; value: string; unit: string }): VNode {
  return (
    <span title={name}>
      <b>{value}</b> {unit}
    </span>
  );
}

/** The beginnings of the hashes in a fingerprint: of the weights and, if there is one, of the adapter. */
function short(fingerprint: string): string {
  const adapter = /-a([\da-f]{8})/.exec(fingerprint)?.[1];
  return [fingerprint.slice(0, 8), adapter].filter(Boolean).join('+');
}

/** A value that a click copies. */
function Chip({ name, value, shown }: { name: string; value: string; shown?: string }): VNode {
  const copy = (): void => {
    void copyText(value).then((isCopied) => isCopied && notify(`Copied the ${name}.`));
  };
  return (
    <button type="button" class="chip" title={`${name} ${value}: click to copy`} onClick={copy}>
      {name} <code>{shown ?? value}</code>
    </button>
  );
}

function ProofButton({ message }: { message: Message }): VNode {
  const proof = proofOf(message);
  const again = (label: string): ComponentChildren => (
    <button
      type="button"
      class="chip action"
      title="Send the same request with the same seed, and compare the text"
      onClick={() => void runAgain(message)}
    >
      {label}
    </button>
  );
  switch (proof?.state) {
    case 'running':
      return (
        <button type="button" class="chip action" onClick={() => stopProof(message)} title="Stop">
          comparing… {Math.floor(proof.share * 100)} %
        </button>
      );
    case 'same':
      return (
        <>
          <span class="proof same" role="status">
            ✓ same text{proof.tokens > 0 ? `, ${proof.tokens} tokens` : ''}
            {proof.times > 1 ? `, ${proof.times} times` : ''}
          </span>
          {again('run again')}
        </>
      );
    case 'different':
      return (
        <>
          <span class="proof different" role="status">
            ✗ differs at character {proof.at + 1}: “{proof.expected}” became “{proof.found}”
            {proof.changed ? '. The fingerprint changed: another model or version answers now' : ''}
          </span>
          {again('run again')}
        </>
      );
    case 'failed':
      return (
        <>
          <span class="proof different" role="status">
            {proof.why}
          </span>
          {again('run again')}
        </>
      );
    default:
      return <>{again('run again')}</>;
  }
}

function figure(n: number): string {
  return n >= 100 ? n.toFixed(0) : n.toFixed(1);
}

function seconds(ms: number): string {
  return ms < 1000 ? `${Math.max(1, Math.round(ms))} ms` : `${(ms / 1000).toFixed(1)} s`;
}
