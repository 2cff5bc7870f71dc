// Package letters is a copy of the shell around dead letters, without I/O: which regions a server asks for failed
// instances, and which dead letters it stores. The shipped shell is global/deadletters.
//
//   - book.go: what an active server knows of dead letters
package letters
