import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vitest/config'

// The page is served below /ui/. In development, requests for data go to a server on this machine:
// NUSA_HTTP=http://127.0.0.1:7601 npm run dev
export default defineConfig({
  base: '/ui/',
  plugins: [svelte()],
  build: {
    target: 'es2022',
    sourcemap: false,
    reportCompressedSize: false,
    // The policy of the server allows no data: addresses.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 400,
  },
  server: { proxy: { '/v1': process.env.NUSA_HTTP ?? 'http://127.0.0.1:8099' } },
  test: { include: ['src/**/*.test.ts'], environment: 'node', execArgv: ['--expose-gc'], pool: 'forks', maxWorkers: 1 },
})
