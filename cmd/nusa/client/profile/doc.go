// Package profile keeps the credentials of a client for each server address, so that commands
// find them without flags. A profile is a folder below the user's configuration folder,
// $XDG_CONFIG_HOME/nusa/profiles or ~/.config/nusa/profiles. Its files are those of an identity
// (roots.pem, cert.pem, key.pem), and a file with an access token.
//
//   - profile.go: Profile, and Path, Read, Write and Remove
package profile
