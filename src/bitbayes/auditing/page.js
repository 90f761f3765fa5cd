// The slider: how many of the normal inputs a threshold keeps, and what gets through then.
(() => {
  const slider = document.getElementById("kept");
  if (slider) {
    const numbers = (text) => text.split(" ").map(Number);
    const perHundred = (share) =>
      share > 0 && share < 0.005 ? "<1" : share >= 0.995 && share < 1 ? ">99" : (100 * share).toFixed(0);
    const update = () => {
      const kept = Number(slider.value), step = Math.round((kept - 50) * 2);
      const shown = kept.toFixed(1).replace(".0", "");
      document.getElementById("kept-now").textContent = `${shown}%`;
      slider.setAttribute("aria-valuetext", `${shown} per cent kept`);
      for (const each of document.querySelectorAll("[data-kept]")) each.textContent = shown;
      for (const each of document.querySelectorAll("[data-accept]")) each.textContent = String(Number((kept / 100).toFixed(3)));
      for (const each of document.querySelectorAll("[data-share]")) each.textContent = perHundred(numbers(each.dataset.share)[step]);
      for (const each of document.querySelectorAll("[data-from]"))
        each.textContent = each.dataset.from !== "" && kept / 100 >= Number(each.dataset.from) - 1e-9 ? "gets through" : "refused";
      for (const strip of document.querySelectorAll("[data-places]")) {
        const place = numbers(strip.dataset.places)[step];
        const line = strip.querySelector(".threshold");
        line.setAttribute("x1", place);
        line.setAttribute("x2", place);
        strip.querySelector(".refused").setAttribute("width", place);
      }
    };
    slider.addEventListener("input", update);
    slider.closest("[hidden]").hidden = false;
    update(); // a browser may have kept another value from before
  }
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", () =>
      navigator.clipboard.writeText(button.nextElementSibling.textContent).then(
        () => (button.textContent = "Copied"),
        () => (button.textContent = "Select and copy") // the browser does not allow it
      )
    );
  }
  // Folded parts are printed too.
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));
})();
