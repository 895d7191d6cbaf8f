// small and plain on purpose: shares of the whole stand in the attributes, everything else follows from them
"use strict";
(function () {
  var own = document.currentScript, svg = own ? own.parentNode : document.documentElement;
  var find = function (id) { return svg.querySelector("#" + id); };
  var frames = Array.prototype.slice.call(svg.querySelectorAll(".f")), box = find("frames");
  var side = +box.getAttribute("data-side"), inner = +box.getAttribute("data-inner");
  var get = function (f, key) { return f.getAttribute("data-" + key); };
  var whole = {x: 0, w: 1, d: 0};
  function show(to) {
    frames.forEach(function (f) {
      var x = (+get(f, "x") - to.x) / to.w, w = +get(f, "w") / to.w, e = 1e-7;
      var below = +get(f, "d") < to.d, hidden = x + w <= e || x >= 1 - e;
      if (below && !hidden) { x = 0; w = 1; }
      f.setAttribute("display", hidden ? "none" : "inline");
      if (hidden) { return; }
      var rect = f.querySelector("rect"), text = f.querySelector("text"), name = get(f, "n");
      var letters = Math.floor((w * inner - 4) / 6.6);
      rect.setAttribute("x", side + x * inner);
      rect.setAttribute("width", Math.max(w * inner, 0.1));
      rect.setAttribute("opacity", below ? 0.5 : 1);
      text.setAttribute("x", side + x * inner + 3);
      text.textContent = letters < 2 ? "" : name.length <= letters ? name : name.slice(0, letters - 1) + "\u2026";
    });
    find("reset").setAttribute("display", to === whole ? "none" : "inline");
  }
  function search(term) {
    var hits = [], share = 0, end = -1, wanted;
    try { wanted = new RegExp(term, "i"); } catch (e) { find("matched").textContent = "not a pattern: " + term; return; }
    frames.forEach(function (f) {
      var rect = f.querySelector("rect"), hit = term !== "" && wanted.test(get(f, "n"));
      if (!rect.hasAttribute("data-fill")) { rect.setAttribute("data-fill", rect.getAttribute("fill")); }
      rect.setAttribute("fill", hit ? "#e6f" : rect.getAttribute("data-fill"));
      if (hit) { hits.push([+get(f, "x"), +get(f, "w")]); }
    });
    hits.sort(function (a, b) { return a[0] - b[0] || b[1] - a[1]; });
    hits.forEach(function (h) {
      if (h[0] >= end - 1e-9) { share += h[1]; end = h[0] + h[1]; }
    });
    find("matched").textContent = term === "" ? " " : "matched " + (100 * share).toFixed(2) + "%";
  }
  frames.forEach(function (f) {
    f.addEventListener("click", function () { show({x: +get(f, "x"), w: +get(f, "w") || 1, d: +get(f, "d")}); });
    f.addEventListener("mouseover", function () { find("details").textContent = f.querySelector("title").textContent; });
    f.addEventListener("mouseout", function () { find("details").textContent = " "; });
  });
  find("reset").addEventListener("click", function () { show(whole); });
  find("title").addEventListener("click", function () { show(whole); });
  find("search").addEventListener("click", function () {
    var term = window.prompt("Search (a regular expression):", "");
    if (term !== null) { search(term); }
  });
})();
