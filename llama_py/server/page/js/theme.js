// Runs before anything is shown, so that the page does not flash in the other theme.
try {
  const theme = JSON.parse(localStorage.getItem("llama-py:theme") ?? '"auto"');
  if (theme !== "auto") document.documentElement.dataset.theme = theme;
} catch {
  // No storage: the theme is the system's.
}
