// objects.js COUNT: looks up and replaces objects in a map, so that the garbage collector has work.
const count = Number(process.argv[2]);
let state = 1;
const draw = (limit) => (state = (state * 48271) % 2147483647) % limit;
const map = new Map();
for (let n = 0; n < count; n++) map.set("key" + n, { n, list: [n, n + 1, n + 2], text: "value " + n });
let sum = 0;
for (let n = 0; n < 2 * count; n++) {
  const key = "key" + Math.floor((draw(count) * draw(count)) / count);
  const found = map.get(key);
  sum += found.list.length;
  if (n % 4 === 0) map.set(key, { n, list: [n], text: "new " + n });
}
console.log(sum);
