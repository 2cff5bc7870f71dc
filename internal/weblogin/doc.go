// Package weblogin lets people log in at the web page with a provider of OpenID Connect. The server asks the
// provider, because the policy of the page allows no request to another server.
//
// The page posts the name of a provider to /ui/login/begin, and opens the address in the answer. The provider
// sends the browser back to /ui/login/done, which is the page. The page posts what the provider gave (a code
// and a state) to /ui/login/finish. The server exchanges the code for an ID token (PKCE, without a secret of
// the client), logs the user in with Auth.Login, and returns the access token.
//
//   - weblogin.go: the handlers
//   - flows.go: the logins in progress, which belong to one browser, and end after 10 minutes
package weblogin
