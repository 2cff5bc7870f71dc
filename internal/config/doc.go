// Package config sets a command's flags from the environment and from a file. A flag on
// the command line has precedence over a NUSA_* environment variable, the variable over a
// YAML file, and the file over the default. The keys of the file are the names of the
// flags, so there is one list of settings.
//
//   - config.go: loading, and the problems of a source
//   - value.go: values of flags: from a file, described, printed
package config
