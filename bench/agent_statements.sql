-- What agents ask such a database, as text-to-SQL writes it: joins of five, CTEs, windows, sub-selects.
-- A blank line ends a statement. {n} is a number that makes each text another.

SELECT c.id, c.full_name, c.email, count(o.id) AS order_count, sum(o.total) AS total_spent
FROM customers c JOIN orders o ON o.customer_id = c.id
WHERE o.placed_at >= '2024-06-01' AND o.status <> 'returned' AND c.id > {n}
GROUP BY c.id, c.full_name, c.email ORDER BY total_spent DESC LIMIT 10

SELECT r.name AS region, cat.name AS category, sum(oi.quantity * oi.unit_price) AS revenue
FROM orders o
JOIN customers c ON c.id = o.customer_id
JOIN regions r ON r.id = c.region_id
JOIN order_items oi ON oi.order_id = o.id
JOIN products p ON p.id = oi.product_id
JOIN categories cat ON cat.id = p.category_id
WHERE o.placed_at BETWEEN '2024-06-01' AND '2024-09-30' AND o.id > {n}
GROUP BY r.name, cat.name HAVING sum(oi.quantity * oi.unit_price) > 1000 ORDER BY revenue DESC LIMIT 50

WITH monthly AS (
  SELECT date_trunc('month', o.placed_at) AS month, sum(o.total) AS revenue, count(*) AS orders
  FROM orders o WHERE o.status IN ('paid', 'shipped') AND o.id > {n} GROUP BY 1
)
SELECT month, revenue, orders, revenue - lag(revenue) OVER (ORDER BY month) AS change,
       round(100.0 * (revenue - lag(revenue) OVER (ORDER BY month)) / nullif(lag(revenue) OVER (ORDER BY month), 0), 2) AS pct
FROM monthly ORDER BY month

WITH ranked AS (
  SELECT p.id, p.name, cat.name AS category, sum(oi.quantity) AS sold,
         row_number() OVER (PARTITION BY cat.id ORDER BY sum(oi.quantity) DESC) AS rank
  FROM products p JOIN categories cat ON cat.id = p.category_id JOIN order_items oi ON oi.product_id = p.id
  WHERE oi.order_id > {n} GROUP BY p.id, p.name, cat.id, cat.name
)
SELECT category, name, sold FROM ranked WHERE rank <= 3 ORDER BY category, rank

SELECT o.id, o.status, o.placed_at, s.sent_at, s.delivered_at, ca.name AS carrier, w.name AS warehouse, c.full_name
FROM orders o
JOIN customers c ON c.id = o.customer_id
JOIN shipments s ON s.order_id = o.id
JOIN carriers ca ON ca.id = s.carrier_id
JOIN warehouses w ON w.id = s.warehouse_id
WHERE s.delivered_at IS NULL AND s.sent_at < timestamptz '2024-08-01' - interval '5 days' AND o.id > {n}
ORDER BY s.sent_at LIMIT 25

SELECT p.sku, p.name, s.quantity - s.reserved AS available, w.name AS warehouse
FROM stock s JOIN products p ON p.id = s.product_id JOIN warehouses w ON w.id = s.warehouse_id
WHERE s.quantity - s.reserved < 10 AND NOT p.discontinued AND p.id > {n} ORDER BY available, p.sku LIMIT 100

SELECT c.full_name, c.email FROM customers c
WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id AND o.placed_at > '2024-08-01')
  AND c.tier = 'gold' AND c.id > {n} ORDER BY c.created_at LIMIT 20

SELECT c.id, c.full_name FROM customers c
WHERE c.id IN (SELECT o.customer_id FROM orders o JOIN payments p ON p.order_id = o.id
               WHERE p.state = 'failed' GROUP BY o.customer_id HAVING count(*) > 2)
  AND c.id <> {n}
ORDER BY c.full_name LIMIT 50

SELECT status, count(*) AS n, avg(total)::numeric(12, 2) AS average FROM orders WHERE id <> {n} GROUP BY status ORDER BY n DESC

SELECT * FROM orders WHERE customer_id = {n} ORDER BY placed_at DESC LIMIT 20

SELECT id, email, full_name, tier FROM customers WHERE email = 'c{n}@example.com'

SELECT count(*) FROM tickets WHERE state = 'open' AND priority = 'urgent' AND id > {n}

WITH first_order AS (
  SELECT customer_id, min(placed_at) AS first_at FROM orders GROUP BY customer_id
), cohort AS (
  SELECT customer_id, date_trunc('month', first_at) AS month FROM first_order
)
SELECT cohort.month, date_trunc('month', o.placed_at) AS active, count(DISTINCT o.customer_id) AS customers
FROM cohort JOIN orders o ON o.customer_id = cohort.customer_id WHERE o.id > {n}
GROUP BY 1, 2 ORDER BY 1, 2

SELECT e.name, d.name AS department, count(t.id) AS closed,
       avg(extract(epoch FROM t.closed_at - t.opened_at)) / 3600 AS hours
FROM employees e JOIN departments d ON d.id = e.department_id JOIN tickets t ON t.assignee_id = e.id
WHERE t.state = 'closed' AND t.opened_at >= '2024-07-01' AND t.id > {n}
GROUP BY e.name, d.name ORDER BY closed DESC LIMIT 15

SELECT t.id, t.subject, c.full_name, o.status AS order_status, e.name AS assignee,
       (SELECT max(ev.happened_at) FROM ticket_events ev WHERE ev.ticket_id = t.id) AS last_event
FROM tickets t JOIN customers c ON c.id = t.customer_id
LEFT JOIN orders o ON o.id = t.order_id LEFT JOIN employees e ON e.id = t.assignee_id
WHERE t.state = 'open' AND t.id > {n} ORDER BY t.opened_at LIMIT 30

SELECT p.attributes ->> 'colour' AS colour, count(*) AS products, avg(p.price) AS average_price
FROM products p WHERE (p.attributes ->> 'weight')::int > 10 AND p.id > {n} GROUP BY 1 ORDER BY 2 DESC

SELECT s.name, r.country, count(DISTINCT p.id) AS products, coalesce(sum(oi.quantity), 0) AS units
FROM suppliers s JOIN regions r ON r.id = s.region_id LEFT JOIN products p ON p.supplier_id = s.id
LEFT JOIN order_items oi ON oi.product_id = p.id AND oi.order_id > {n}
GROUP BY s.name, r.country ORDER BY units DESC LIMIT 20

SELECT method, count(*) FILTER (WHERE state = 'settled') AS settled, count(*) FILTER (WHERE state = 'failed') AS failed,
       round(100.0 * count(*) FILTER (WHERE state = 'failed') / count(*), 2) AS failure_rate
FROM payments WHERE paid_at >= '2024-06-01' AND id > {n} GROUP BY method ORDER BY failure_rate DESC

WITH spend AS (
  SELECT o.customer_id, sum(o.total) AS total FROM orders o WHERE o.status = 'paid' AND o.id > {n} GROUP BY o.customer_id
)
SELECT c.tier, percentile_cont(0.5) WITHIN GROUP (ORDER BY spend.total) AS median, max(spend.total) AS highest
FROM spend JOIN customers c ON c.id = spend.customer_id GROUP BY c.tier

SELECT date_trunc('week', placed_at)::date AS week, count(*) AS orders, sum(total) AS revenue
FROM orders WHERE placed_at > '2024-06-15' AND id > {n} GROUP BY 1 ORDER BY 1

SELECT p.name, avg(r.stars) AS rating, count(*) AS reviews FROM products p JOIN reviews r ON r.product_id = p.id
WHERE r.created_at > '2024-09-10' AND p.id > {n} GROUP BY p.id, p.name HAVING count(*) >= 2 ORDER BY rating DESC, reviews DESC LIMIT 10

SELECT pl.name, count(*) AS active, sum(pl.monthly) AS mrr FROM subscriptions s JOIN plans pl ON pl.id = s.plan_id
WHERE s.ended_on IS NULL AND s.id > {n} GROUP BY pl.name ORDER BY mrr DESC

SELECT ws.channel, count(DISTINCT ws.id) AS sessions, count(pv.id) AS views, count(DISTINCT ws.customer_id) AS customers
FROM web_sessions ws LEFT JOIN page_views pv ON pv.session_id = ws.id
WHERE ws.started_at >= '2024-08-01' AND ws.id > {n} GROUP BY ws.channel ORDER BY views DESC

SELECT tag, count(*) FROM page_views pv CROSS JOIN LATERAL unnest(pv.tags) AS tag WHERE pv.id > {n} GROUP BY tag ORDER BY 2 DESC LIMIT 10

SELECT c.full_name, last_order.id, last_order.total FROM customers c
CROSS JOIN LATERAL (SELECT o.id, o.total FROM orders o WHERE o.customer_id = c.id ORDER BY o.placed_at DESC LIMIT 1) last_order
WHERE c.region_id = 3 AND c.id > {n} ORDER BY last_order.total DESC LIMIT 25

SELECT coalesce(r.reason, 'not given') AS reason, count(*) AS refunds, sum(r.amount) AS amount,
       round(sum(r.amount) / (SELECT sum(amount) FROM payments WHERE state = 'settled') * 100, 3) AS share
FROM refunds r JOIN payments p ON p.id = r.payment_id WHERE r.id > {n} GROUP BY 1 ORDER BY amount DESC

SELECT o.id, o.total, ot.net, o.total - ot.net AS difference FROM orders o JOIN order_totals ot ON ot.id = o.id
WHERE abs(o.total - ot.net) > 5 AND o.id < {n} ORDER BY abs(o.total - ot.net) DESC LIMIT 20

SELECT parent.name AS parent, child.name AS category, count(p.id) AS products
FROM categories child LEFT JOIN categories parent ON parent.id = child.parent_id LEFT JOIN products p ON p.category_id = child.id
WHERE child.id <> {n} GROUP BY parent.name, child.name ORDER BY parent.name NULLS FIRST, products DESC

SELECT CASE WHEN total < 100 THEN 'small' WHEN total < 500 THEN 'medium' ELSE 'large' END AS size, count(*), min(total), max(total)
FROM orders WHERE id > {n} GROUP BY 1 ORDER BY 2 DESC

SELECT c.id, c.full_name, a.city FROM customers c JOIN addresses a ON a.customer_id = c.id AND a.is_default
WHERE a.city ILIKE 'city 1%' AND c.id > {n} ORDER BY a.city, c.full_name LIMIT 40 OFFSET 20

SELECT product_id FROM stock WHERE warehouse_id = 1 AND quantity > 100 AND product_id > {n}
EXCEPT SELECT product_id FROM stock WHERE warehouse_id = 2 AND quantity > 100 ORDER BY 1 LIMIT 50

SELECT 'orders' AS what, count(*) AS n FROM orders WHERE id > {n}
UNION ALL SELECT 'tickets', count(*) FROM tickets
UNION ALL SELECT 'reviews', count(*) FROM reviews ORDER BY what

WITH daily AS (
  SELECT placed_at::date AS day, sum(total) AS revenue FROM orders WHERE id > {n} GROUP BY 1
)
SELECT day, revenue, avg(revenue) OVER (ORDER BY day ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS seven_days,
       sum(revenue) OVER (ORDER BY day) AS running FROM daily ORDER BY day LIMIT 60

SELECT cu.code, count(o.id) AS used, sum(o.total) AS revenue FROM coupons cu LEFT JOIN orders o ON o.coupon_id = cu.id AND o.id > {n}
WHERE cu.valid_until > '2025-01-10' GROUP BY cu.code ORDER BY used DESC, cu.code LIMIT 10

SELECT p.id, p.name, p.price, p.price - avg(p.price) OVER (PARTITION BY p.category_id) AS over_average
FROM products p WHERE p.category_id IN (1, 2, 3, 5, 8, 13) AND p.id > {n} ORDER BY over_average DESC LIMIT 20

SELECT m.name AS manager, count(e.id) AS reports, min(e.hired_on) AS longest FROM employees e JOIN employees m ON m.id = e.manager_id
WHERE e.id > {n} GROUP BY m.name ORDER BY reports DESC

SELECT to_char(o.placed_at, 'YYYY-MM') AS month, r.country, count(DISTINCT o.customer_id) AS buyers,
       sum(oi.quantity * oi.unit_price * (1 - oi.discount)) AS net
FROM orders o JOIN order_items oi ON oi.order_id = o.id JOIN customers c ON c.id = o.customer_id JOIN regions r ON r.id = c.region_id
WHERE o.id > {n} GROUP BY 1, 2 ORDER BY 1, 4 DESC

WITH late AS (
  SELECT s.order_id, s.carrier_id FROM shipments s WHERE s.delivered_at - s.sent_at > interval '2 days' AND s.id > {n}
), complained AS (
  SELECT DISTINCT t.order_id FROM tickets t WHERE t.order_id IS NOT NULL
)
SELECT ca.name, count(*) AS late, count(co.order_id) AS complained
FROM late l JOIN carriers ca ON ca.id = l.carrier_id LEFT JOIN complained co ON co.order_id = l.order_id
GROUP BY ca.name ORDER BY late DESC

SELECT ev.kind, avg((ev.payload ->> 'minutes')::numeric) AS minutes, count(*) FROM ticket_events ev
WHERE ev.happened_at >= now() - interval '5 years' AND ev.id > {n} GROUP BY ev.kind

SELECT a.customer_id, array_agg(DISTINCT p.name ORDER BY p.name) AS products, string_agg(DISTINCT cat.name, ', ') AS categories
FROM orders a JOIN order_items oi ON oi.order_id = a.id JOIN products p ON p.id = oi.product_id JOIN categories cat ON cat.id = p.category_id
WHERE a.customer_id = {n} GROUP BY a.customer_id
