// Package discovery registers the healthy instances of services of a region, tells the global tier about
// them, and gets those of the other regions.
//
//	registrar  Registrar: derives the instances of groups that changed (regional/register)
//	exchange   Exchange: publishes to the global tier, follows it, and says how far the other regions are
//	server     Server: the services Discovery and Services
//	copies     Copier: a server that is not the master follows the master
package discovery
