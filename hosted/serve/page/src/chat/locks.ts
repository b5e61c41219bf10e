/** One window at a time writes an answer. Pages that came over plain HTTP from another machine have no `navigator.locks`: they ask. */
import { hear, tellOthers } from '../data/store';

const held = new Set<string>();
const heldElsewhere = new Set<string>();
hear(({ ask, holds }) => {
  if (ask !== undefined && held.has(ask)) tellOthers({ holds: ask });
  if (holds !== undefined) heldElsewhere.add(holds);
});

const nameOf = (id: string): string => `sluice ${id}`;
const locks = (): LockManager | undefined => navigator.locks as LockManager | undefined;

async function hold(id: string, work: () => Promise<void>): Promise<void> {
  held.add(id);
  try {
    await work();
  } finally {
    held.delete(id);
  }
}

async function isHeld(id: string): Promise<boolean> {
  heldElsewhere.delete(id);
  tellOthers({ ask: id });
  await pause(ASK_MS);
  return held.has(id) || heldElsewhere.has(id);
}

/** Does the work of a new answer, which no other window has. */
export async function asFirst(id: string, work: () => Promise<void>): Promise<void> {
  if (locks()) await locks()?.request(nameOf(id), work);
  else await hold(id, work);
}

/** Does work on an answer once no other window has it; not at all if `signal` comes first. */
export async function whenFree(id: string, work: () => Promise<void>, signal?: AbortSignal): Promise<void> {
  if (locks()) {
    await locks()?.request(nameOf(id), signal ? { signal } : {}, work);
    return;
  }
  while (await isHeld(id)) {
    if (signal?.aborted) return;
    await pause(AGAIN_MS);
  }
  await hold(id, work);
}

/** Does work on an answer unless another window has it; returns whether it did. */
export async function ifFree(id: string, work: () => Promise<void>): Promise<boolean> {
  if (locks()) {
    const isDone = await locks()?.request(nameOf(id), { ifAvailable: true }, async (lock) => {
      if (lock) await work();
      return lock !== null;
    });
    return isDone === true;
  }
  if (await isHeld(id)) return false;
  await hold(id, work);
  return true;
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** For an answer of another window, which may be in the background. */
const ASK_MS = 250;
const AGAIN_MS = 1000;
