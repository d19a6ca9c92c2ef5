// Tooltips and the filter. The page is complete without them.
"use strict";
(() => {
  const MOST_USERS = 3;
  const plan = JSON.parse(document.getElementById("plan").textContent);
  const tip = document.getElementById("tip");
  const search = document.getElementById("search");
  const count = document.getElementById("count");
  const dimmer = document.getElementById("dimmer");
  const buttons = [...document.querySelectorAll(".bar button")];
  const nodes = document.querySelector(".nodes");

  // A column is one value for all processes, the number of an equal column before it, or a list.
  const value = (component, column, process) => {
    const found = component.columns[column];
    if (typeof found === "number") return value(component, found, process);
    return typeof found === "string" ? found : found[process];
  };
  const counted = (number, name) => `${number.toLocaleString("en")} ${name}${number === 1 ? "" : "s"}`;
  const line = (tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  };
  const describe = (component, process) => {
    const lines = component.names
      .map((name, column) => [name, value(component, column, process)])
      .filter(([, found]) => found !== null)
      .map(([name, found]) => `${name}=${found}`);
    const made = document.createElement("div");
    made.append(line("strong", `${component.name} rank ${process}`), line("pre", lines.join("\n")));
    return made;
  };
  const about = (target) => {
    const box = target.closest(".node");
    const node = plan.nodes[[...nodes.children].indexOf(box)];
    if (target.matches(".chips b")) {
      const component = plan.components[Number(target.dataset.c)];
      const ranks = component.nodes[node.rank] || "";
      return [line("div", `${node.title}: ${component.name}, ranks ${ranks}`)];
    }
    const device = node.devices[[...target.parentElement.children].indexOf(target)];
    const users = device.users.slice(0, MOST_USERS);
    const parts = [line("div", `${node.title}: ${device.title}`)];
    const beside = document.createElement("div");
    beside.className = "users";
    for (const [component, process] of users) beside.append(describe(plan.components[component], process));
    parts.push(beside);
    if (!users.length) parts.push(line("div", "idle: no process owns it"));
    if (device.users.length > users.length) parts.push(line("div", `and ${(device.users.length - users.length).toLocaleString("en")} more`));
    return parts;
  };

  const hide = () => { tip.hidden = true; tip.classList.remove("pinned"); };
  const show = (target, x, y) => {
    tip.replaceChildren(...about(target));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - height - 8))}px`;
  };
  const hovered = (event) => event.target.closest(".cells i, .chips b");
  nodes.addEventListener("mousemove", (event) => {
    if (tip.classList.contains("pinned")) return;
    const target = hovered(event);
    if (target) show(target, event.clientX, event.clientY); else hide();
  });
  nodes.addEventListener("mouseleave", () => { if (!tip.classList.contains("pinned")) hide(); });
  nodes.addEventListener("click", (event) => {
    const target = hovered(event);
    hide();
    if (target) { show(target, event.clientX, event.clientY); tip.classList.add("pinned"); }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") { hide(); filter(""); } });

  const filter = (text) => {
    const wanted = text.trim().toLowerCase();
    search.value = text;
    const kept = plan.components.map((_, index) => index)
      .filter((index) => wanted && plan.components[index].name.toLowerCase().includes(wanted));
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(kept.includes(Number(button.dataset.c))));
    }
    const not = kept.map((index) => `:not(.c${index})`).join("");
    dimmer.textContent = wanted ? `.cells i${not}, .chips b${not} { opacity: .13; }` : "";
    if (!wanted) { count.textContent = ""; return; }
    const matches = kept.map((index) => `.cells .c${index}, .chips .c${index}`).join(", ");
    const found = matches ? [...nodes.querySelectorAll(matches)] : [];
    const devices = found.filter((element) => element.tagName === "I").length;
    const boxes = new Set(found.map((element) => element.closest(".node"))).size;
    count.textContent = `${counted(devices, "device")} on ${counted(boxes, "node")}`;
  };
  search.addEventListener("input", () => filter(search.value));
  for (const button of buttons) {
    const name = plan.components[Number(button.dataset.c)].name;
    button.addEventListener("click", () => filter(search.value === name ? "" : name));
  }
  // page.html#q=actor opens with the filter set; #node=3&device=1 with a tooltip.
  const asked = new URLSearchParams(location.hash.slice(1));
  if (asked.has("q")) filter(asked.get("q"));
  if (asked.has("node")) {
    const box = nodes.children[Number(asked.get("node"))];
    const cell = box && box.querySelectorAll(".cells i, .chips b")[Number(asked.get("device") || 0)];
    if (cell) {
      const place = cell.getBoundingClientRect();
      show(cell, place.left, place.top);
      tip.classList.add("pinned");
    }
  }
})();
