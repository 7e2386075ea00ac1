// Shows the curve of the sliders' current settings. `figure` is the element around them.
figure => {
  const counts = JSON.parse(figure.dataset.counts), sliders = figure.querySelectorAll("input");
  let index = 0;
  sliders.forEach((slider, at) => {
    index = index * counts[at] + Number(slider.value);
    slider.nextElementSibling.textContent = slider.dataset.values.split("|")[slider.value];
  });
  figure.querySelectorAll("g[data-frame]").forEach((frame, at) => {
    frame.style.display = at === index ? "" : "none";
  });
  figure.querySelector("figcaption").textContent = figure.dataset.captions.split("|")[index];
}
