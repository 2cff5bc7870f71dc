// Package forms knows which `config` the regions accept for drivers that are not built in. It holds soft state:
// regions send it at the beginning of a session and after changes.
//
//	forms.go  Book: the forms of all regions; whether a region refuses a task
package forms
