-- tables.lua N: N records in tables; reads, updates and replacements; prints what it saw.
-- Three of four choices fall on an eighth of the records, which lie anywhere.
local count = tonumber(arg[1])
local state = 1
local function dice(below)
  state = (state * 6364136223846793005 + 1442695040888963407)
  return (state >> 33) % below
end
local function record(i)
  return { name = "record " .. i .. "/" .. dice(1 << 30), value = dice(1 << 30),
           parts = { dice(100), dice(100), dice(100) } }
end
local records, order = {}, {}
for i = 1, count do
  records[i] = record(i)
  order[i] = i
end
for i = count, 2, -1 do
  local j = dice(i) + 1
  order[i], order[j] = order[j], order[i]
end
local seen = 0
for turn = 1, 2 * count do
  local below = dice(4) > 0 and count // 8 or count
  local i = order[dice(below) + 1]
  local r = records[i]
  seen = (seen * 31 + r.value + #r.name + r.parts[2]) % (1 << 60)
  if turn % 8 == 0 then
    r.parts[#r.parts + 1] = turn
  elseif turn % 32 == 1 then
    records[i] = record(i)
  end
end
local sum = 0
for i = 1, count do
  for _, part in ipairs(records[i].parts) do
    sum = sum + part
  end
end
print(count, seen, sum)
