// Package auditsink writes the entries of an audit trail to a file and to syslog, beside the trail
// itself.
//
//   - sink.go: Sink: a bounded queue, and the file
//   - syslog.go: messages of RFC 5424
package auditsink
