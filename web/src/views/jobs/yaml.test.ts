import { describe, expect, it } from 'vitest'
import { blocks, lineOf, newLineIndent, tokens } from './yaml'

const file = `# a job
name: api
regions:
  allow:
    - name: oslo
    - {name: bergen}
  near:
    - region: oslo
      max_rtt: 40ms
groups:
  web:
    count: 6
    constraints:
      - node.cpu_cores >= 4
      - 'node.labels["disk"] == "ssd"'
    tasks:
      server:
        driver: process
        config:
          command: /bin/sh
          args:
            - -c
            - |
              count: 7
              echo hello
        env: {PORT: "80"}
colocate: [[web, cache]]
`
const at = (field: string) => file.split('\n')[lineOf(file, field) - 1]?.trim()

describe('lineOf', () => {
  it('finds fields, items of lists, and texts in blocks are no fields', () => {
    expect(at('name')).toBe('name: api')
    expect(at('groups.web.count')).toBe('count: 6')
    expect(at('groups.web.constraints[1]')).toBe(`- 'node.labels["disk"] == "ssd"'`)
    expect(at('regions.allow[0].name')).toBe('- name: oslo')
    expect(at('regions.near[0].max_rtt')).toBe('max_rtt: 40ms')
    expect(at('groups.web.tasks.server.driver')).toBe('driver: process')
    expect(at('groups.web.tasks.server.config.args[1]')).toBe('- |')
  })

  it('finds the nearest field above what the file writes in another form', () => {
    expect(at('groups.web.tasks.server.env.PORT')).toBe('env: {PORT: "80"}')
    expect(at('regions.allow[1].name')).toBe('- {name: bergen}')
    expect(at('groups.web.update.max_parallel')).toBe('web:')
    expect(at('groups.cache')).toBe('groups:')
    expect(lineOf(file, 'nothing')).toBe(0)
    expect(lineOf(file, '')).toBe(0)
    expect(lineOf('', 'a.b')).toBe(0)
  })
})

describe('tokens', () => {
  const kinds = (line: string) =>
    tokens(line)
      .filter((t) => t.text.trim() !== '')
      .map((t) => `${t.text.trim()}/${t.kind}`)

  it('returns every character of the line', () => {
    for (const line of [...file.split('\n'), 'a:', '"x": [1, "2', "- - 'it''s' # c", ':', '\t- x', 'url: https://x/y#z', '<script>alert(1)</script>']) {
      expect(
        tokens(line)
          .map((t) => t.text)
          .join(''),
      ).toBe(line)
    }
  })

  it('colours keys, texts, numbers and comments', () => {
    expect(kinds('  count: 6 # six')).toEqual(['count/key', ':/mark', '6/number', '# six/comment'])
    expect(kinds('env: {PORT: "80"}')).toEqual(['env/key', ':/mark', '{/mark', 'PORT/key', ':/mark', '"80"/string', '}/mark'])
    expect(kinds('# all')).toEqual(['# all/comment'])
    expect(kinds('- memory: 64MiB')).toEqual(['-/mark', 'memory/key', ':/mark', '64MiB/number'])
  })

  it('knows the texts of blocks', () => {
    const is = blocks(file)
    const lines = file.split('\n')
    expect(lines.filter((_, i) => is[i]).map((l) => l.trim())).toEqual(['count: 7', 'echo hello'])
  })
})

describe('newLineIndent', () => {
  it('goes one step in after a key without a value', () => {
    expect(newLineIndent('  web:')).toBe('    ')
    expect(newLineIndent('  - |')).toBe('    ')
    expect(newLineIndent('  count: 1')).toBe('  ')
  })
})

describe('lineOf with lists', () => {
  it('reads dashes below the key, and items of several lines', () => {
    const source = 'prefer:\n- selector:\n    name: a\n  weight: 1\n- weight: 2\n- \n  weight: 3\nname: x\n'
    expect(lineOf(source, 'prefer[0].selector.name')).toBe(3)
    expect(lineOf(source, 'prefer[0].weight')).toBe(4)
    expect(lineOf(source, 'prefer[1].weight')).toBe(5)
    expect(lineOf(source, 'name')).toBe(8)
  })
})
