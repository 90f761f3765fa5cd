// Both scenes, links, and what happens when the page opens.

const dark = matchMedia("(prefers-color-scheme: dark)");

function showScene() {
  for (const scene of CHOICES.scene) find(scene).hidden = scene !== state.scene;
  showSwitch("scene");
  redraw();
}

// Show what an address says, exactly.
function restore(address) {
  stopMoving();
  Object.assign(state, fromAddress(address));
  refit();
  drawLegend();
  showScene();
}

async function copyLink() {
  history.replaceState(null, "", asAddress());
  try {
    await navigator.clipboard.writeText(location.href);
    find("copied").textContent = "Copied.";
  } catch {
    find("copied").textContent = "Copy it from the address bar."; // some browsers and frames do not allow it
  }
}

listenToPlane();
listenToDigits();
makeSwitch("scene", [["plane", "Points in the plane"], ["digits", "Digits"]], showScene);
find("copy").addEventListener("click", copyLink);
addEventListener("hashchange", () => restore(location.hash));
dark.addEventListener("change", () => redraw());

if (location.hash.length > 1) restore(location.hash);
else {
  refit();
  drawLegend();
  Object.assign(state, STEPS[0].begin());
  showScene();
  if (!calm.matches) moveTo({ zoom: ZOOMED_OUT }, 4000);
}
