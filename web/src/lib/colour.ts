// Colour scales. Each one changes its lightness in one direction, so that readers who do not distinguish
// hues, and prints without colour, still show the order.

export type RGB = [number, number, number]

const hex = (s: string): RGB => [Number.parseInt(s.slice(1, 3), 16), Number.parseInt(s.slice(3, 5), 16), Number.parseInt(s.slice(5, 7), 16)]
const list = (s: string): RGB[] => s.split(' ').map(hex)

/** Ramp is a scale by its stops, at equal distances. */
export interface Ramp {
  light: RGB[]
  dark: RGB[]
}

/** Round trips: short ones are near the colour of the page, long ones stand out. */
export const rttRamp: Ramp = {
  light: list('#eef6e3 #c9e6c6 #8fcdbf #4fb0c3 #2f87bd #2f5ea6 #3a3a85 #37195c'),
  dark: list('#122c36 #155065 #1c7686 #3a9b8f #77b97c #bcd06c #f3dd70 #fff3c4'),
}

/** Loss: no loss is near the colour of the page. */
export const lossRamp: Ramp = {
  light: list('#f1f3f5 #fde3c4 #fbb977 #ee8430 #c9530f #7f2704'),
  dark: list('#18232c #47290f #85430f #c8691d #f29a45 #ffdcae'),
}

/** Differences of two directions: purple is slower on the way out, orange on the way back. */
export const differenceRamp: Ramp = {
  light: list('#a34a00 #d98a3a #f3c894 #f2f3f5 #c9c3e6 #8c7fc4 #4d2d91'),
  dark: list('#ffb45e #c87a26 #6e4519 #18232c #3f3a70 #7d70cc #c3b8ff'),
}

/** at returns the colour of a position 0..1. */
export function at(ramp: Ramp, position: number, dark: boolean): RGB {
  const stops = dark ? ramp.dark : ramp.light
  const p = Math.max(0, Math.min(1, position)) * (stops.length - 1)
  const i = Math.min(stops.length - 2, Math.floor(p))
  const a = stops[i]!, b = stops[i + 1]!, t = p - i
  return [Math.round(a[0] + (b[0] - a[0]) * t), Math.round(a[1] + (b[1] - a[1]) * t), Math.round(a[2] + (b[2] - a[2]) * t)]
}

export const css = (c: RGB): string => `rgb(${c[0]} ${c[1]} ${c[2]})`

/** mix returns a colour between two. */
export const mix = (a: RGB, b: RGB, t: number): RGB => [Math.round(a[0] + (b[0] - a[0]) * t), Math.round(a[1] + (b[1] - a[1]) * t), Math.round(a[2] + (b[2] - a[2]) * t)]

const FAST = Math.log(1)
const SLOW = Math.log(400)

/** rttPosition places a round trip on its scale, which is logarithmic from 1 ms to 400 ms. */
export const rttPosition = (ms: number): number => (Math.log(Math.max(1, ms)) - FAST) / (SLOW - FAST)

/** rttTicks are the marks of the scale of round trips. */
export const rttTicks = [1, 5, 20, 50, 100, 400]

/** lossPosition places a share of lost probes, 0..1. A loss of 20 % is the end of the scale. */
export const lossPosition = (share: number): number => Math.sqrt(Math.min(1, share / 0.2))

export const lossTicks = [0, 0.01, 0.05, 0.1, 0.2]

/** differencePosition places (out - back) / longer of both, -0.5..0.5. */
export const differencePosition = (d: number): number => 0.5 + d

/** lineColour is the colour of a line on the map: the part of the scale that stands out from the land. */
export const lineColour = (ms: number, dark: boolean): string => css(at(rttRamp, 0.3 + 0.7 * rttPosition(ms), dark))

/** background is the colour of a cell without a value. */
export const background = (dark: boolean): RGB => (dark ? [13, 18, 23] : [255, 255, 255])
