// Shows the figure up to the moment that the slider stands on. `figure` is the element around it.
figure => {
  const { times, begin, unit, left, right, stages } = JSON.parse(figure.dataset.steps);
  const slider = figure.querySelector("input"), at = Number(slider.value);
  const time = times[at], end = times[times.length - 1], last = at === times.length - 1;
  const round = number => String(Number(number.toPrecision(4)));
  const curtain = figure.querySelector("[data-curtain]");
  curtain.style.display = last ? "none" : "block";
  curtain.style.left = `${100 * (left + (right - left) * (time - begin) / (end - begin))}%`;
  figure.querySelector("output").textContent =
    `step ${at} of ${times.length - 1}, time ${round(time - begin)}${unit}`;
  stages.forEach(({ spans, live }, stage) => {
    const now = spans.find(([, from, to]) => from <= time && time < to);
    const next = spans.find(([, from]) => from > time);
    const busy = spans.reduce((sum, [, from, to]) =>
      sum + Math.max(0, Math.min(time, to) - from), 0);
    const kept = live.filter(([when]) => when <= time).pop();
    const cells = figure.querySelectorAll(`[data-stage="${stage}"] td`);
    cells[0].textContent = now ? `runs ${now[0]}`
      : next ? `idle before ${next[0]}${next[3] ? `, which needs ${next[3]}` : ""}` : "done";
    cells[1].textContent = kept ? kept[1] : 0;
    cells[2].textContent = `${round(time - begin - busy)}${unit}`;
  });
}
