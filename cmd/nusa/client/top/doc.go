// Package top implements `nusa top`: the present state of the federation in a terminal, from the stream
// Overview.Watch. On a terminal it is drawn again as it changes. Otherwise it is printed once.
//
//   - command.go: the command; one print
//   - live.go: the screen on a terminal: the stream, the keys, and when it is drawn
//   - page.go: the page as text, its order and its scrolling; pure
package top
