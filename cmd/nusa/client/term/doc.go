// Package term writes text for people: tables, colours, and values in their usual units.
//
//   - screen.go: Screen, where a command prints, and the terminal's size
//   - palette.go: Palette, colours that only a terminal gets
//   - table.go: Table, aligned columns that fit a width
//   - format.go: durations, sizes, numbers and counts
//   - text.go: one-line texts, reasons in words, texts that are cut
package term
