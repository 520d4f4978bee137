// records.js N: a Map of N objects; reads, updates and replacements; prints what it saw.
// Three of four choices fall on an eighth of the objects, which lie anywhere.
'use strict';
const count = Number(process.argv[2]);
let state = 1;
function dice(below) {
  state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
  return (state >> 8) % below;
}
function record(i) {
  const parts = [];
  for (let n = 1 + dice(6); n > 0; n--) parts.push(dice(1000000));
  return { name: 'record ' + i + ' of ' + dice(1000000), value: dice(1000000), parts };
}
const records = new Map();
for (let i = 0; i < count; i++) records.set('id' + i, record(i));
let seen = 0;
for (let turn = 0; turn < 4 * count; turn++) {
  const below = dice(4) ? count >> 3 : count;
  const i = (dice(below) * 7919) % count;
  const one = records.get('id' + i);
  seen = (Math.imul(seen, 31) + one.value + one.parts.length + one.name.length) & 0xfffffff;
  if (turn % 8 === 0) one.parts.push(turn);
  else if (turn % 32 === 1) records.set('id' + i, record(i));
}
let sum = 0;
for (const one of records.values()) for (const part of one.parts) sum = (sum + part) % 1e15;
console.log(count, seen, sum);
