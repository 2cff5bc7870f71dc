// Package web has the page of Nusa, for browsers. The source of the page is in src, and the built page
// in dist. See README.md for how the page is built.
//
//   - handler.go: Handler, which serves the built page
//   - fixture: a server with an invented federation, for tests and for the development of the page
//   - e2e: tests of the page in a real browser
package web
