// Flags and settings are found as they are typed. lunr takes a minus sign for "without this word" and two for an error,
// and it would find each part of train.batch_size=32 alone: all parts of the name are asked for, and no value.
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (typeof message?.data === "string") {
    const data = message.data
      .replace(/[:{}]+/g, " ")
      .replace(/(^|\s)-+(?=\w)/g, "$1")
      .replace(/(\w)=\S*/g, "$1")
      .replace(/[a-z]\w*[._]\w[\w.]*/gi, (name) => name.split(/[._]+/).map((part) => part && `+${part}*`).join(" "));
    message = { ...message, data };
  }
  return send.call(this, message, ...rest);
};
