import { vitePreprocess } from '@sveltejs/vite-plugin-svelte'

/** @type {import('@sveltejs/vite-plugin-svelte').SvelteConfig} */
export default {
  preprocess: vitePreprocess({ script: false, style: false }),
  compilerOptions: {
    runes: true,
    // The names of classes depend on the styles only, so that every machine builds the same page.
    cssHash: ({ css, hash }) => `s-${hash(css)}`,
  },
}
