// Package auditwire converts the entries and trees of package audit to messages and back.
//
//   - auditwire.go: entries, trees and stored records
//   - filter.go: Filter: which entries a list shows
package auditwire
