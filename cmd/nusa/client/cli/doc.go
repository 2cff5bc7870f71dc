// Package cli has the parts that the commands of the client share: flags, the connection
// and output of one call of a command, and messages about errors.
//
//   - settings.go: Settings, the flags of all commands of one noun
//   - session.go: Session, one call of a command: connection, context, output
//   - identity.go: the credentials of a client
//   - token.go: the access token of a client
//   - renew.go: the renewal of the client's own certificate
//   - contact.go: clients without credentials, and the first contact by the hash of a root
//   - call.go: commands that make one call and print the result; pages of lists
//   - print.go: messages as a table, JSON or YAML
//   - names.go: the names of objects, one in a line
//   - states.go: the flag --state of lists
//   - complete.go: names of the server for the completion of the shell
//   - targets.go: how jobs are named in arguments and in further commands
//   - files.go: files, - for standard input, and the flags for variables of job files
//   - flags.go: durations with days and weeks
//   - usage.go: arguments, and errors of flags and unknown commands
//   - program.go: the name of this binary in hints
//   - help.go: help texts in 80 columns
//   - exit.go: exit codes
//   - errors.go: errors of calls as lines that say what to do
//   - hint.go: suggests a name that is similar to one that does not exist
//   - socket.go: the Unix socket of a server on this machine
//   - browser.go: the browser of the user
//   - resume.go: streams that continue after a broken connection
package cli
