// Package login has the commands `nusa login` and `nusa logout`. They write and remove the profile of a
// server's address, from which all other commands take their credentials.
//
//   - command.go: login, and what a login stores
//   - joining.go: login with a join token, as an operator with a certificate
//   - provider.go: login with a provider of OpenID Connect
//   - browser.go: the login of a user in a browser on this machine
//   - logout.go: logout
package login
