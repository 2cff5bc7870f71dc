import { expect, it } from 'vitest'
import { age, bytes, cores, countdown, millis, percent, ratio, seconds } from './format'

it('writes numbers for people', () => {
  expect([0.42, 12.3, 999, 1234, NaN].map(millis)).toEqual(['0.4 ms', '12 ms', '999 ms', '1.2 s', '–'])
  expect([0, 0.005, 0.37, 1].map(percent)).toEqual(['0 %', '0.5 %', '37 %', '100 %'])
  expect([250_000, 61_000, 0, -5, 3_723_000].map(countdown)).toEqual(['4:10', '1:01', '0:00', '0:00', '1:02:03'])
  expect([5_000, 90_000, 7_200_000, 300_000_000].map(age)).toEqual(['5 s', '2 min', '2 h', '3 d'])
  expect([512, 1536, 2 ** 30].map(bytes)).toEqual(['512 B', '1.5 KiB', '1 GiB'])
  expect([1500, 64_000, 1_234_000].map(cores)).toEqual(['1.5', '64', '1\u202f234'])
  expect([seconds('1.500s'), seconds(undefined)]).toEqual([1.5, 0])
  expect([ratio('5', '10'), ratio('5', undefined)]).toEqual([0.5, 0])
})
