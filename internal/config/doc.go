// Package config fills a command's flags from their other sources: a flag wins over
// a NUSA_* environment variable, which wins over a YAML file, which wins over the
// default. The keys of the file are the names of the flags, so there is one list of
// settings.
//
//   - config.go: loading, and the problems of a source
//   - value.go: values of flags: from a file, described, printed
package config
