// All scenarios, in the order in which they run.
import * as access from './access.mjs';
import * as answers from './answers.mjs';
import * as branches from './branches.mjs';
import * as kept from './kept.mjs';
import * as proof from './proof.mjs';
import * as settings from './settings.mjs';
import * as storage from './storage.mjs';
import * as streams from './streams.mjs';

const all = [answers, branches, proof, settings, storage, kept, streams, access];
export const scenarios = all.flatMap((file) => file.default);
