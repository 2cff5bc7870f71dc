// Package vars fills in the variables of a job file. A file declares variables under the key
// "variables", next to the fields of the job or to the key "job":
//
//	variables:
//	  image: nginx:1.27                                 # a default
//	  replicas: {default: 3, description: per region}   # a default and a description
//	  token: {description: of the registry}             # no default: it must be given
//	name: web
//	groups:
//	  web: {count: "${var.replicas}"}
//
// A value that is nothing but ${var.NAME} becomes the value of the variable, also a number or a list.
// Within a text, ${var.NAME} becomes the text of the value. $${var.NAME} stays ${var.NAME}. A file that
// declares no variables stays as it is.
//
//   - values.go: the values that are given outside of the file
//   - declare.go: what a file declares
//   - resolve.go: the file with its values
package vars
