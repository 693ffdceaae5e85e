
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  // Texts come from data sets: they enter the page as text nodes only.
  const made = (tag, text, kind) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  // Tables: a click on the head of a column sorts by it, another one turns the order round.
  const sort = (head) => {
    const column = [...head.parentNode.children].indexOf(head);
    const body = head.closest("table").tBodies[0];
    const text = head.classList.contains("text");
    const now = head.getAttribute("aria-sort");
    const falling = now ? now === "ascending" : !text;
    const key = (row) => row.cells[column].dataset.value;
    const rows = [...body.rows].sort((left, right) => {
      const [a, b] = [key(left), key(right)];
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      const order = text ? a.localeCompare(b, undefined, { numeric: true }) : Number(a) - Number(b);
      return falling ? -order : order;
    });
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    body.append(...rows);
  };
  for (const button of document.querySelectorAll("thead button")) {
    button.addEventListener("click", () => sort(button.closest("th")));
  }

  // Of tables that belong together one is shown.
  for (const select of document.querySelectorAll("select[data-group]")) {
    const show = () => {
      for (const part of document.querySelectorAll(`[data-of="${select.dataset.group}"]`)) {
        part.hidden = part.dataset.number !== select.value;
      }
    };
    select.addEventListener("change", show);
    select.closest(".controls").hidden = false;
    show();
  }

  // Queries: the worst of a model, or those that two models differ most on.
  const sets = Object.keys(data.queries);
  if (!sets.length) return;
  const [dataset, metric, first, second, order, filter] =
    ["dataset", "metric", "first", "second", "order", "filter"].map(at);
  const fill = (select, names, chosen) => {
    const before = select.value;
    select.replaceChildren(...names.map((name) => {
      const option = made("option", name);
      option.value = name;
      return option;
    }));
    select.value = names.includes(before) ? before : chosen;
  };
  const round = (value) => value.toFixed(3);
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "±") + round(Math.abs(value));
  const kind = (value) => (value > 0 ? "more" : value < 0 ? "less" : "");

  const document_of = (set, [number, grade, score]) => {
    const [id, title, text] = set.documents[number];
    const item = made("li", undefined, grade > 0 ? "relevant" : "");
    const judged = grade === null ? "not judged" : grade > 0 ? `relevant, grade ${grade}` : `judged ${grade}`;
    const facts = score === undefined ? [id, judged] : [id, `score ${Number(score.toPrecision(4))}`, judged];
    if (title) item.append(made("strong", title), " ");
    item.append(made("span", facts.join(" · "), "tag"), made("div", text));
    return item;
  };
  const list = (set, heading, entries) => {
    const block = made("div");
    block.append(made("h4", heading));
    const items = made("ol");
    items.append(...entries.map((entry) => document_of(set, entry)));
    block.append(entries.length ? items : made("p", "none", "note"));
    return block;
  };
  const opened = (set, query, models) => {
    const lists = made("div", undefined, "lists");
    const rankings = models.filter((model) => query.top[model]);
    lists.append(...rankings.map((model) => list(set, `Best of ${set.models[model]}`, query.top[model])));
    lists.append(list(set, "Relevant documents", query.relevant));
    return lists;
  };

  const show = () => {
    const set = data.queries[dataset.value];
    const column = set.metrics.indexOf(metric.value);
    const [a, b] = [first, second].map((select) => set.models.indexOf(select.value));
    const value = (query, model) => query.values[model][column];
    const worst = order.value === "worst" || a === b;
    const way = order.value === "ahead" ? -1 : 1;
    const key = (query) => (worst ? value(query, a) : way * (value(query, a) - value(query, b)));
    const wanted = filter.value.toLowerCase();
    const usable = set.queries.filter((query) =>
      value(query, a) !== null && (worst || (value(query, b) !== null && key(query) < 0)));
    const ordered = usable.sort((left, right) => key(left) - key(right)).slice(0, set.depth);
    const shown = ordered.filter((query) => `${query.id} ${query.text}`.toLowerCase().includes(wanted));
    const sorting = worst ? `lowest ${metric.value} of ${first.value}`
      : `${first.value} furthest ${way > 0 ? "behind" : "ahead of"} ${second.value} in ${metric.value}`;
    at("query-count").textContent = `${shown.length} queries: ${sorting}, of ${set.of} evaluated`;
    at("query-list").replaceChildren(...shown.map((query) => {
      const row = made("details");
      const head = made("summary", query.text);
      const values = made("span", undefined, "values");
      values.append(`${query.id} · ${first.value} ${round(value(query, a))}`);
      if (a !== b && value(query, b) !== null) {
        const difference = value(query, a) - value(query, b);
        values.append(` · ${second.value} ${round(value(query, b))} · `, made("span", signed(difference), kind(difference)));
      }
      head.append(values);
      row.append(head);
      // The documents of a query enter the page when someone asks for them.
      row.addEventListener("toggle", () => {
        if (row.open && row.children.length === 1) row.append(opened(set, query, a === b ? [a] : [a, b]));
      });
      const item = made("li");
      item.append(row);
      return item;
    }));
  };
  const change = () => {
    const set = data.queries[dataset.value];
    fill(metric, set.metrics, set.metrics[0]);
    fill(first, set.models, set.models[set.models.length - 1]);
    fill(second, set.models, set.models[0]);
    show();
  };
  fill(dataset, sets, sets[0]);
  dataset.addEventListener("change", change);
  for (const select of [metric, first, second, order]) select.addEventListener("change", show);
  filter.addEventListener("input", show);
  at("drill").hidden = false;
  change();
})();
