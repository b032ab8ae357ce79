// The API key, where the server wants one. It lives as long as the tab.

const NAME = "allmetal-key";
let asking = null;

export function key() {
  return sessionStorage.getItem(NAME) || "";
}

export function forgetKey(wrong) {
  if (key() === wrong) sessionStorage.removeItem(NAME);
}

/** One dialog for all who wait for a key. */
export function askKey(wrong) {
  asking ??= show(wrong).finally(() => {
    asking = null;
  });
  return asking;
}

function show(wrong) {
  const dialog = document.getElementById("key");
  const input = document.getElementById("key-value");
  document.getElementById("key-wrong").hidden = !wrong;
  input.value = "";
  return new Promise((done) => {
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener(
      "close",
      () => {
        sessionStorage.setItem(NAME, input.value.trim());
        done();
      },
      { once: true },
    );
    dialog.showModal();
    input.focus();
  });
}
