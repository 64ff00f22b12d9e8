/** Examples for each kind of model, in English and Korean: values of the fields, by name. */

import { currentLanguage } from "./i18n.js";
import { hasOutput, inputsOf, isList, searchKind } from "./tasks.js";
import { specialTokens } from "./tokens.js";

const SENTENCES = [
  { text: "The food was not good at all." },
  { text: "An unforgettable film, and I cannot recommend it enough." },
  { text: "두 시간이 아깝지 않은, 정말 재미있는 영화였다." },
];
const PAIRS = [
  { text: "A man is playing a guitar.", second_text: "Someone is making music with an instrument." },
  { text: "The company reported a loss.", second_text: "The company reported a profit." },
  { text: "한 남자가 기타를 치고 있다.", second_text: "누군가 악기를 연주한다." },
];
const MASK = "[MASK]"; // replaced by the name that the model has for it
const MASKS = [
  { text: "The capital of France is [MASK]." },
  { text: "She opened the [MASK] and read the [MASK] page." },
  { text: "대한민국의 수도는 [MASK]이다." },
];

const DESK = [
  "The reading room is open from nine to six, and until eight on Thursdays.",
  "Lost your card? Block it at once under 555-0142, day and night.",
  "Books can be kept for four weeks and renewed twice.",
  "For every day that a book is late, we charge twenty cents.",
  "Visitors may use the wireless network without a password.",
  "Please leave bags and coats in the lockers on the ground floor.",
  "Children under twelve get a card for free.",
  "Coffee and cake are served in the courtyard.",
].join("\n");
const DESK_KO = [
  "열람실은 아홉 시부터 여섯 시까지, 목요일에는 여덟 시까지 엽니다.",
  "회원증을 잃어버리셨나요? 555-0142로 전화해 바로 정지하세요.",
  "책은 4주 동안 빌릴 수 있고 두 번 연장할 수 있습니다.",
  "반납이 늦으면 하루에 200원을 받습니다.",
  "방문하신 분은 비밀번호 없이 무선 인터넷을 쓸 수 있습니다.",
  "가방과 외투는 1층 사물함에 넣어 주세요.",
  "열두 살 아래 어린이의 회원증은 무료입니다.",
  "마당에서 커피와 케이크를 팝니다.",
].join("\n");
const SEARCHES = [
  { question: "What happens if I return a book late?", lines: DESK },
  { question: "Is there somewhere to eat?", lines: DESK },
  { question: "When do you close?", lines: DESK },
  { question: "책을 늦게 돌려주면 어떻게 되나요?", lines: DESK_KO },
  { question: "인터넷을 쓸 수 있나요?", lines: DESK_KO },
];

// By an input or an output of the model, the first that it has; those of a search are called "lines".
const EXAMPLES = {
  lines: SEARCHES,
  choices: [
    {
      context: "The man broke his toe.",
      question: "What was the cause of this?",
      choices: ["He got a hole in his sock.", "He dropped a hammer on his foot."],
    },
    {
      context: "밖에 비가 많이 온다.",
      question: "무엇을 가지고 나가야 할까?",
      choices: ["우산", "선글라스", "부채"],
    },
  ],
  context: [
    {
      question: "When did Ada Lovelace publish her notes?",
      context:
        "Ada Lovelace was born in London in 1815. She published her notes on Babbage's Analytical Engine in 1843, " +
        "and they contain what many call the first program. She died in 1852.",
    },
    {
      question: "한글은 누가 만들었는가?",
      context:
        "한글은 조선의 네 번째 임금인 세종대왕이 1443년에 만들어 1446년에 반포한 문자이다. 처음 이름은 훈민정음이었다.",
    },
  ],
  mask_count: MASKS,
  vector: [
    { text: ["A man is playing a guitar.", "Someone is making music.", "The stock market fell on Friday."] },
    { text: ["오늘은 날씨가 맑다.", "하늘에 구름 한 점 없다.", "은행은 네 시에 문을 닫는다."] },
  ],
  intent: [
    { text: "play some jazz from the nineties on the kitchen speaker" },
    { text: "book a table for four at an italian restaurant in boston tomorrow" },
    { text: "내일 오후 서울 날씨 알려 줘" },
  ],
  tag: [
    { text: "Ada Lovelace was born in London in 1815, and Charles Babbage knew her well." },
    { text: "Angela Merkel flew from Berlin to New York on Monday to meet people at Microsoft." },
    { text: "이순신은 1545년 서울에서 태어났고, 한국은행은 백 원 동전에 그의 얼굴을 새겼다." },
  ],
  second_text: PAIRS,
};

const isKorean = (example) => /\p{Script=Hangul}/u.test(JSON.stringify(example));

/**
 * Examples of a model; those in the reader's language come first.
 *
 * searches: whether those of a model that can search are of searches.
 */
export function examplesOf(model, searches = true) {
  const names = inputsOf(model);
  const fits = (name) => names.includes(name) || hasOutput(model, name);
  const found = searches && searchKind(model) ? "lines" : Object.keys(EXAMPLES).find(fits);
  const all = found ? EXAMPLES[found] : SENTENCES.map((_, number) => sentences(model, names, number));
  const mask = ({ text }) => ({ text: text.replaceAll(MASK, specialTokens(model).mask) });
  const made = all === MASKS ? all.map(mask) : all;
  const mine = (example) => isKorean(example) === (currentLanguage() === "ko");
  return [...made.filter(mine), ...made.filter((example) => !mine(example))];
}

/** An example of any texts, from the sentence of this number. */
function sentences(model, names, number) {
  const text = (at) => SENTENCES[(number + at) % SENTENCES.length].text;
  return Object.fromEntries(names.map((name, at) => [name, isList(model, name) ? [text(at), text(at + 1)] : text(at)]));
}
