-- orders.sql: a table of orders in memory with two indexes; joins, updates, groups. :count is
-- replaced before it is read.
PRAGMA temp_store = MEMORY;
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, day INTEGER, sum INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
INSERT INTO orders
SELECT i, (i * 7919 + i % 13) % (:count / 10), (i * 31) % 365, (i * 104729) % 10007,
       printf('order %d, to be sent to street %d in city %d', i, (i * 48271) % 99991, i % 511)
FROM n;
CREATE INDEX by_customer ON orders (customer, day);
CREATE INDEX by_sum ON orders (sum);
SELECT count(*), sum(length(note)) FROM orders;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count / 8)
SELECT sum(orders.sum), max(length(note)) FROM n JOIN orders ON orders.id = (n.i * 15485863) % :count + 1;
UPDATE orders SET sum = sum + 1, note = note || ', late' WHERE customer % 16 = 3;
SELECT day, count(*), sum(sum) FROM orders GROUP BY day ORDER BY 3 DESC LIMIT 5;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count / 200)
SELECT count(*), sum(a.sum + length(a.note)) FROM n JOIN orders a ON a.customer = (n.i * 7907) % (:count / 10);
DELETE FROM orders WHERE sum < 500;
SELECT count(*), sum(length(note)), max(sum) FROM orders;
